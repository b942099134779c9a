"""Families of transformers beside Llama: the library's logits, in every way that tokens are given;
other encodings, adaptations and extensions of them; and back to the library's own class."""

import json
from dataclasses import dataclass, field

import pytest
import torch
from conftest import composed, in_pieces, left_padded, random_tokens, refuses
from omegaconf import OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM

from arithmetic.problems import character_tokenizer
from tape import TapeConfig, TapeForCausalLM
from tape.cli.evaluate import perplexity
from tape.cli.models import FORMATS
from tape.evaluation import EXTENSIONS
from tape.evaluation.extension import extended
from tape.export import export
from tape.export.family import family_config
from tape.model import families
from tape.model.adapters import Method, adapt, save_configuration
from tape.model.checkpoint import load_model
from tape.model.families import FAMILIES, WRITTEN
from tape.training.build import adapt_model, adapted_config, identity

LENGTH, LONGER = 16, 31  # trained, and given
SHAPE = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH}
SHAPE |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}  # the library's tables of cosines are in float32
MULTIPLIED = {"embedding_multiplier": 12.0, "attention_multiplier": 0.3}
MULTIPLIED |= {"residual_multiplier": 0.22, "logits_scaling": 8.0}


@dataclass(frozen=True)
class Kind:
    family: str
    changes: dict = field(default_factory=dict)
    written: str | None = None  # the family that it is exported as, if not its own


KINDS = {
    "llama": Kind("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": Kind("mistral", {"sliding_window": 5}),
    "mistral, no window": Kind("mistral", {"sliding_window": None, "head_dim": 6}),
    "qwen2": Kind("qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": Kind(
        "qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    ),
    "qwen3": Kind("qwen3", {"head_dim": 12}),
    "qwen3, windows": Kind(
        "qwen3",
        {"attention_bias": True, "layer_types": ["sliding_attention", "full_attention"] * 2}
        | {"use_sliding_window": True, "sliding_window": 3},
    ),
    "smollm3": Kind("smollm3"),
    "smollm3, windows": Kind(
        "smollm3",
        {"use_sliding_window": True, "sliding_window": 4, "no_rope_layers": [1, 0, 1, 1]},
    ),
    "granite": Kind("granite", MULTIPLIED | {"tie_word_embeddings": True}, "llama"),
    "granite, untied": Kind("granite", MULTIPLIED | {"attention_bias": True}, "llama"),
}
PLAIN = [name for name in KINDS if "," not in name]
FACTORS = [1.0, 2.0, 3.0, 4.0]
ROPES = {
    "linear": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": LENGTH},
    "longrope": {"factor": 4.0, "short_factor": FACTORS, "long_factor": FACTORS}
    | {"original_max_position_embeddings": LENGTH},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": LENGTH},
}


def folder_of(folder, kind, **changes):
    """A tiny random checkpoint of a family, none of whose weights is as it starts."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind.family, **SHAPE | kind.changes | changes)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("families")
    return {name: folder_of(place / name, kind) for name, kind in KINDS.items()}


def both(folder, **how):
    """The library's model, and ours."""
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    ours = TapeForCausalLM.from_pretrained(folder, dtype=torch.float64, **how)
    return theirs.eval(), ours.eval()


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_logits_are_the_librarys(folders, name):
    theirs, ours = both(folders[name])
    tokens = random_tokens(2, LONGER)  # beyond the trained length
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, **CLOSE)
    torch.testing.assert_close(in_pieces(ours, tokens, [9, 1, 1, 20]), expected, **CLOSE)
    tokens, mask = left_padded()
    for inputs, seen in ((tokens, mask), (tokens.flip(1), mask.flip(1))):
        real = seen.bool()
        found = ours(inputs, attention_mask=seen).logits[real]
        for row, logits in enumerate(found.split(seen.sum(1).tolist())):
            alone = theirs(inputs[row : row + 1, real[row]]).logits[0]
            torch.testing.assert_close(logits, alone, **CLOSE)
    packed = random_tokens(1, 20)
    documents = torch.tensor([[0] * 7 + [1] * 13])
    found = ours(packed, document_ids=documents).logits
    parts = [theirs(part).logits for part in packed.split([7, 13], dim=1)]
    torch.testing.assert_close(found, torch.cat(parts, dim=1), **CLOSE)


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_every_schedule_of_frequencies_is_the_librarys(tmp_path, name, kind):
    if KINDS[name].family == "qwen3" and kind == "longrope":
        kind = "linear"  # the factors are of other heads
    rope = {"rope_type": kind, "rope_theta": 500.0, **ROPES[kind]}
    folder = folder_of(tmp_path, KINDS[name], rope_parameters=rope)
    tokens = random_tokens(1, LONGER)
    theirs, ours = both(folder)
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, **CLOSE)
    again = TapeForCausalLM.from_pretrained(folder, dtype=torch.float64, position="tape").eval()
    torch.testing.assert_close(again(tokens).logits, expected, **CLOSE)


BESIDE = {
    "no_rope_layers": {  # an effect in SmolLM3 alone
        name: {"no_rope_layers": [1, 0, 1, 1]} for name in PLAIN
    },
    "layer_types": {
        name: {"layer_types": ["sliding_attention"] * 4, "sliding_window": 3}
        for name in ("llama", "granite")  # which ignore it
    },
    "original length": {  # beside the schedule, whose own it overrides
        name: {
            "original_max_position_embeddings": 4 * LENGTH,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0} | ROPES["yarn"],
        }
        for name in PLAIN
    },
}


@pytest.mark.parametrize(
    ("field", "name"), [(field, name) for field, names in BESIDE.items() for name in names]
)
@torch.no_grad()
def test_fields_take_effect_where_the_library_reads_them(tmp_path, field, name):
    folder = folder_of(tmp_path, KINDS[name])
    saved = json.loads((folder / "config.json").read_text())
    saved_config(folder, **saved | BESIDE[field][name])
    theirs, ours = both(folder)
    tokens = random_tokens(1, LONGER)
    torch.testing.assert_close(ours(tokens).logits, theirs(tokens).logits, **CLOSE)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_tape_starts_as_the_base_and_is_saved(folders, tmp_path, name):
    theirs, ours = both(folders[name], position={"name": "tape", "sampler": "shift"})
    tokens = random_tokens(2, LONGER)
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, **CLOSE)
    for parameter in ours.parameters():
        parameter += 0.1 * torch.randn_like(parameter)
    changed = ours(tokens).logits
    ours.save_pretrained(tmp_path)
    again = TapeForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(tokens).logits, changed, atol=1e-9, rtol=1e-9)
    assert not torch.allclose(changed, expected)


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_the_library_computes_what_is_exported(folders, tmp_path, monkeypatch, name):
    kind, tokens = KINDS[name], random_tokens(2, LONGER)
    family = kind.written or kind.family
    monkeypatch.setattr("tape.export.verify", lambda *given: None)  # in a process of its own
    out = export(folders[name], tmp_path / "out", family)
    exported, info = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float64, output_loading_info=True
    )
    assert exported.config.model_type == family and not any(info.values())
    expected = both(folders[name])[0](tokens).logits
    torch.testing.assert_close(exported.eval()(tokens).logits, expected, **CLOSE)
    assert f"written as a plain {family}" in (out / "README.md").read_text()


def test_what_a_family_lacks_is_named():
    assert FORMATS[1:] == WRITTEN
    for name, family, message in (
        ("mistral", "llama", r"a Llama computes another function \(sliding_window\); allowed"),
        ("qwen2", "llama", r"a Llama computes another function \(qkv_bias\)"),
        ("qwen3", "smollm3", r"another function \(head_dim, qk_norm\)"),
        ("smollm3", "qwen3", r"another function \(position, qk_norm\)"),
        ("llama", "qwen2", r"another function \(attention_bias, mlp_bias, qkv_bias\)"),
    ):
        kind = KINDS[name]
        fields = AutoConfig.for_model(kind.family, **SHAPE | kind.changes).to_dict()
        config = {"transformers_version": "5"} | fields
        model = TapeForCausalLM(TapeConfig(**families.read(config, name)))
        refuses(message, family_config, model, family)


@pytest.mark.parametrize("method", EXTENSIONS)
@torch.no_grad()
def test_families_are_extended_as_a_llama_is(folders, method):
    """Within the trained length, distances are as trained, or scaled as a Llama's are."""
    tokens = random_tokens(1, LENGTH)
    for name in PLAIN:
        words = ["--model", str(folders[name]), "--data", "local", "--extend", method]
        words += ["--factor", "1"] if method in ("linear", "ntk", "yarn") else []
        given = perplexity([*words, "--out", "x.csv"])
        model = load_model(folders[name], torch.float64, position=extended(given, folders[name]))
        assert model(random_tokens(1, LONGER)).logits.isfinite().all()
        if method in ("linear", "ntk", "yarn", "dca"):  # none is changed
            expected = both(folders[name])[0](tokens).logits
            torch.testing.assert_close(model(tokens).logits, expected, **CLOSE)


def saved_config(folder, **fields):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


OTHERS = {
    "gemma3_text": r"'gemma3_text', with rms_norm_eps \(its norms multiply by 1 \+ w\)",
    "gemma2": r"'gemma2', with rms_norm_eps",
    "gpt_neox": r"'gpt_neox', with use_parallel_residual \(attention and an MLP without",
    "qwen3_5_text": r"'qwen3_5_text', with layer_types \(linear attention\)",
    "olmo2": r"'olmo2', with rms_norm_eps \(norms after attention and MLP",
    "ministral3": r"'ministral3', with rope_parameters.llama_4_scaling_beta",
    "mixtral": r"'mixtral', with num_local_experts \(experts\)",
    "qwen2_moe": r"'qwen2_moe', with num_experts \(experts\)",
    "qwen3_moe": r"'qwen3_moe', with num_local_experts \(experts\)",
    "deepseek_v3": r"'deepseek_v3', with kv_lora_rank",
    "gpt2": r"'gpt2', with n_positions \(learned positions",
    "mistral3": r"'mistral3', with text_config",
}


@pytest.mark.parametrize("family", OTHERS)
def test_other_families_are_refused_by_the_field_that_stands_in_the_way(tmp_path, family):
    AutoConfig.for_model(family).save_pretrained(tmp_path)
    message = OTHERS[family] + rf".*; allowed: 'tape', '{FAMILIES[0]}', 'mistral'"
    refuses(message, TapeForCausalLM.from_pretrained, tmp_path)


def test_what_a_family_may_have_and_the_decoder_not_is_refused(tmp_path):
    dynamic = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    saved_config(tmp_path, model_type="qwen2", rope_parameters=dynamic, **SHAPE)
    refuses(r"rope_type='dynamic': only schedules that are fixed", load, tmp_path)
    by_kind = {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}
    for family in ("llama", "qwen3"):  # transformers ignores it in a Llama
        saved_config(tmp_path, model_type=family, rope_parameters=by_kind, **SHAPE)
        refuses(r"full_attention=.* is a schedule for some layers", load, tmp_path)
    kinds = ["chunked_attention"] * 4
    saved_config(tmp_path, model_type="qwen3", layer_types=kinds, **SHAPE)
    refuses(r"layer_types has 'chunked_attention'; allowed", load, tmp_path)
    window = {"layer_types": ["sliding_attention"] * 4, "sliding_window": 3}
    saved_config(tmp_path, model_type="smollm3", use_sliding_window=False, **window, **SHAPE)
    refuses(r"layer_types has 'sliding_attention' with use_sliding_window=false", load, tmp_path)


def load(folder):
    return TapeConfig.from_pretrained(folder)


def test_multipliers_that_would_be_rounded_are_refused(tmp_path):
    folder = folder_of(tmp_path, KINDS["granite"])
    message = r"Granite's multipliers .* cannot be part of .* in torch.bfloat16 without rounding"
    refuses(message, TapeForCausalLM.from_pretrained, folder, dtype=torch.bfloat16)
    powers = dict.fromkeys(MULTIPLIED, 0.25)
    folder = folder_of(tmp_path, KINDS["granite"], hidden_size=64, **powers)  # heads of 16
    TapeForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = TapeForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path / "ours")
    assert "_multipliers" not in (tmp_path / "ours" / "config.json").read_text()
    again = TapeForCausalLM.from_pretrained(tmp_path / "ours")
    assert all(map(torch.equal, again.parameters(), model.parameters()))


METHODS = ["lora", "longlora", "thetalora", "yarn", "adape", "adape_lora", "ft", "norms", "drope"]
AS_BEFORE = {"lora", "longlora", "adape", "adape_lora", "ft", "norms"}  # before the first step


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_families_are_adapted_as_a_llama_is(folders, tmp_path, method):
    tokens = random_tokens(2, LENGTH)
    for name in ("qwen2", "granite") if method == "longlora" else ("qwen2", "smollm3", "granite"):
        base = str(folders[name])
        cfg = composed(f"peft={method}", f"base_model={base}", f"length={LENGTH * 2}")
        settings = OmegaConf.to_container(cfg, resolve=True)
        config = adapted_config(base, settings["model"], settings["position"])
        model = adapt_model(base, config, character_tokenizer())
        how = Method.of(settings["peft"])
        model = adapt(model, how, base, identity(base)).eval()
        found, expected = model(tokens).logits, both(base)[0](tokens).logits.float()
        as_before = torch.allclose(found, expected, atol=1e-4)
        assert as_before == (method in AS_BEFORE), name
        if how.lora is not None:  # the adapter is merged into its base
            for key, parameter in model.named_parameters():
                if "lora_B" in key or "context" in key:
                    parameter += 0.1 * torch.randn_like(parameter)
            changed, folder = model(tokens).logits, tmp_path / name
            model.save_pretrained(folder)
            save_configuration(model, folder)
            torch.testing.assert_close(load_model(folder)(tokens).logits, changed, **CLOSE)
            assert not torch.allclose(changed, found, atol=1e-3)
