"""Adapting a base model: what trains, what is saved, what comes back, and what is refused."""

import json
import re
import shutil
from functools import cache as cached

import pytest
import torch
from commands import tape
from conftest import composed, gradients, make_model, perturb, random_tokens, refuses
from every_encoding import POSITIONS
from omegaconf import OmegaConf
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from trained import losses
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.trainer_utils import align_special_tokens

from arithmetic.problems import character_tokenizer
from tape import TapeConfig, TapeForCausalLM
from tape.data import TextCorpus, TokenBlocks, tokenize_corpus, train_tokenizer
from tape.export import load as load_for_export
from tape.export.family import write_config
from tape.model.adapters import Method, adapt, save_configuration, trainable, weights_of_encoding
from tape.model.checkpoint import fingerprint, identified, load_model
from tape.training.build import adapt_model, adapted_config, identity
from tape.training.report import scored_windows

WHOLE = ["adape", "ft", "norms", "drope"]  # saved as whole models
METHODS = ["lora", "longlora", "thetalora", "yarn", "adape_lora", *WHOLE]
ROTARY = ["lora", "longlora", "thetalora", "yarn", "ft"]
THETA, SHORT, LENGTH = 5000.0, 16, 64  # of the base, and extended to
SMALL = ["trainer.max_steps=4", "trainer.learning_rate=1e-2", f"length={LENGTH}"]


def make_llama(folder, tokenizer, **changes):
    """A Llama of transformers', with grouped queries."""
    torch.manual_seed(0)
    shape = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": SHORT}
    rope = {"rope_type": "default", "rope_theta": THETA}
    llama = LlamaForCausalLM(LlamaConfig(**shape | {"rope_parameters": rope} | changes))
    perturb(llama).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(text, cache, tmp_path_factory):
    tokenizer = train_tokenizer(TextCorpus(text), 300, cache)
    return make_llama(tmp_path_factory.mktemp("llama"), tokenizer)


@pytest.fixture
def extend(start, base):
    return lambda method, *overrides, **where: start(
        f"peft={method}", f"base_model={base}", *SMALL, *overrides, **where
    )


@pytest.fixture(scope="module")
def trained(run_quick, base, tmp_path_factory):
    """Runs that several tests look at: the folder of a method."""
    folder = tmp_path_factory.mktemp("runs")
    settings = [f"base_model={base}", *SMALL]
    return cached(lambda name: run_quick(f"peft={name}", *settings, folder=folder / name))


@pytest.fixture(scope="module")
def blocks(base, text, cache):
    """The validation sequences of a run."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    stream = tokenize_corpus(TextCorpus(text), "validation", tokenizer, cache)
    rows = TokenBlocks(stream, LENGTH, limit=8)
    return torch.stack([rows[n]["input_ids"] for n in range(len(rows))])


@torch.no_grad()
def loss_of(model, blocks):
    return model.eval()(input_ids=blocks, labels=blocks).loss.item()


def logged_loss(folder):
    return losses(folder, "eval_loss")[-1][1]


def adapted(base, method, *overrides):
    """The model of a run before its first step."""
    cfg = composed(f"peft={method}", f"base_model={base}", f"length={LENGTH}", *overrides)
    settings = OmegaConf.to_container(cfg, resolve=True)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    config = adapted_config(str(base), settings["model"], settings["position"])
    model = adapt_model(str(base), config, tokenizer)
    trained = settings["model"]["max_position_embeddings"]
    found = Method.of(settings["peft"])
    return adapt(model, found, str(base), identity(str(base)), length=trained)


@pytest.mark.parametrize("method", METHODS)
def test_what_was_trained_is_what_is_saved_and_merged(trained, base, blocks, tmp_path, method):
    folder = trained(method)
    loss = logged_loss(folder)
    assert loss < loss_of(load_model(base), blocks) - 0.1
    assert (folder / "model.safetensors").exists() == (method in WHOLE)
    assert (folder / "adapter_model.safetensors").exists() == (method not in WHOLE)
    assert not [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt")]
    model, tokenizer, _ = load_for_export(folder)
    assert type(model) is TapeForCausalLM and len(tokenizer) == 300
    assert loss_of(model, blocks) == pytest.approx(loss, abs=1e-5)
    made = model.config.adaptation
    assert (made["method"]["name"], made["base_model"]) == (method, str(base))
    assert model.config.max_position_embeddings == LENGTH
    if method not in WHOLE:  # peft would load the base as it is
        same = method in ("lora", "longlora")
        named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert named == (str(base) if same else None)
        if same:
            found = loss_of(AutoPeftModelForCausalLM.from_pretrained(folder), blocks)
            assert found == pytest.approx(loss, abs=1e-5)
    model.save_pretrained(tmp_path)
    if method in ROTARY:
        write_config(model, tmp_path, "llama")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is (LlamaForCausalLM if method in ROTARY else TapeForCausalLM)
    assert loss_of(again, blocks) == pytest.approx(loss, abs=1e-5)


EVERY_LAYER = ("input_layernorm", "post_attention_layernorm")
EXTRA = {"model.embed_tokens", "model.norm", *(f"model.layers.*.{n}" for n in EVERY_LAYER)}
LORA = {f"model.layers.*.self_attn.{name}_proj.lora_{factor}" for name in "qkvo" for factor in "AB"}
TAPE = {f"model.layers.*.context.{name}" for name in ("mix", "gate", "up", "down")}
EVERYTHING = {
    *(EXTRA | {"lm_head"}),
    *(f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"),
    *(f"model.layers.*.mlp.{name}_proj" for name in ("gate", "up", "down")),
}
ALL_TRAIN = ("ft", "drope")
TRAINED = dict.fromkeys(("lora", "longlora", "thetalora", "yarn"), LORA)
TRAINED |= {"adape": TAPE, "adape_lora": TAPE | LORA} | dict.fromkeys(ALL_TRAIN, EVERYTHING)


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("extra", [True, False])
def test_exactly_the_documented_weights_train(base, method, extra):
    model = adapted(base, method, *([] if method in ALL_TRAIN else [f"peft.extra={extra}"]))
    counts = trainable(model)
    assert counts.keys() == TRAINED[method] | (EXTRA if extra else set())
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    if counts.keys() >= TAPE:  # 2 of 4 query heads to a key/value head; none in the last layer
        sizes = {"mix": 2 * 4, "gate": 16 * 32, "up": 16 * 2, "down": 2 * 16}
        assert {name[23:]: counts[name] for name in TAPE} == sizes
    if counts.keys() >= LORA:
        assert counts["model.layers.*.self_attn.q_proj.lora_A"] == 2 * 8 * 32
        assert counts["model.layers.*.self_attn.k_proj.lora_B"] == 2 * 16 * 8


def base_of(position, folder):
    """A checkpoint of addition's vocabulary, whose encoding has weights that none begins with."""
    tokenizer = character_tokenizer()
    model = make_model(position, vocab_size=len(tokenizer))
    for name, weight in model.named_parameters():
        if name in weights_of_encoding(model):
            weight.data.fill_(3.0)
    model.save_pretrained(folder)
    return str(folder), tokenizer


@pytest.mark.parametrize("before", ["rope", {"name": "abacus", "digits": [3]}])
def test_places_of_digits_on_a_base_are_those_of_its_tokenizer(before, tmp_path):
    base, tokenizer = base_of(before, tmp_path)
    position = {"name": "abacus", "digits": [], "offset": 0, "length": None}
    config = adapted_config(base, {"vocab_size": None}, position)
    digits = adapt_model(base, config, tokenizer).config.position["digits"]
    assert tokenizer.convert_ids_to_tokens(digits) == [*"0123456789"]


@pytest.mark.parametrize("names", ["fox path", "kerple bam", "tape fox"])
def test_another_encoding_begins_anew(names, tmp_path):
    """Also where the weights of both have the same names, or other shapes."""
    before, after = names.split()
    base, tokenizer = base_of(before, tmp_path)
    loaded = []
    for folder in (base, base_of("nope", tmp_path / "nope")[0]):
        config = adapted_config(folder, {"vocab_size": None}, POSITIONS[after])
        torch.manual_seed(0)
        loaded.append(adapt_model(folder, config, tokenizer).state_dict())
    for name in weights_of_encoding(make_model(after)):
        found, new = (weights[name] for weights in loaded)
        assert found.mean().item() == pytest.approx(new.mean().item(), abs=0.1), name
        assert found.norm().item() == pytest.approx(new.norm().item(), rel=0.4, abs=1e-6), name


@torch.no_grad()
def test_an_adapter_of_another_encoding_is_loaded(tmp_path):
    base, tokenizer = base_of("tape", tmp_path / "base")
    settings = OmegaConf.to_container(composed("peft=lora", f"base_model={base}"), resolve=True)
    config = adapted_config(base, {"vocab_size": None}, POSITIONS["fox"])
    method = Method.of(settings["peft"])
    model = adapt(adapt_model(base, config, tokenizer), method, base, identity(base))
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(tmp_path / "run")
    save_configuration(model, tmp_path / "run")
    tokens = random_tokens(1, 12) % len(tokenizer)
    found = load_model(tmp_path / "run")(tokens).logits
    torch.testing.assert_close(found, model.eval()(tokens).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["lora", "longlora", "yarn", "adape"])
def test_training_on_less_than_the_bases_length_keeps_that(base, method):
    """And what follows from it, but for the groups of longlora, which divide training sequences."""
    model = adapted(base, method, f"length={SHORT // 2}")
    assert model.config.max_position_embeddings == SHORT
    if method == "yarn":
        assert model.config.rope_parameters["factor"] == 1
    if method == "longlora":
        assert model.get_base_model().model.s2_group_size == SHORT // 2 // 4


def test_what_was_trained_on_less_than_the_bases_length_exports_that(extend, base, tmp_path):
    folder = extend("lora", f"length={SHORT // 2}")
    report = (folder / "report" / "report.md").read_text()
    told = f"1x is the length of the training sequences, {SHORT // 2} tokens"
    assert f"{told}; the model keeps the {SHORT} of its base." in report
    tape("export", folder, "--out", tmp_path / "plain", "--format", "llama")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    assert config["max_position_embeddings"] == SHORT


@torch.no_grad()
def test_drope_has_no_positions_and_the_weights_of_its_base(base):
    model = adapted(base, "drope", f"length={SHORT}").eval()
    torch.testing.assert_close(model.state_dict(), load_model(base).state_dict(), atol=0, rtol=0)
    assert model.config.position["name"] == "nope"


def test_frequencies_come_back(base, trained):
    found = load_model(trained("thetalora")).model.position.inv_freq
    torch.testing.assert_close(found, torch.tensor([1e6 ** (-2 * f / 8) / 2 for f in range(4)]))
    own = adapted(base, "thetalora", "position.theta=null", "position.scaling.factor=3")
    expected = torch.tensor([THETA ** (-2 * f / 8) / 3 for f in range(4)])
    torch.testing.assert_close(own.get_base_model().model.position.inv_freq, expected)
    yarn = load_model(trained("yarn")).config.rope_parameters
    assert (yarn["factor"], yarn["rope_theta"]) == (LENGTH / SHORT, THETA)
    loaded = TapeForCausalLM.from_pretrained(base, position="yarn", max_position_embeddings=99)
    for found in (yarn, loaded.config.rope_parameters):
        assert found["original_max_position_embeddings"] == SHORT


def test_an_evaluation_is_of_an_adapters_scale(trained, tmp_path):
    folder = shutil.copytree(trained("lora"), tmp_path / "lora")
    before, path = identified(folder, load_model(folder)), folder / "adapter_config.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"peft_version": "0"}))
    assert identified(folder, load_model(folder)) == before
    path.write_text(json.dumps(found | {"lora_alpha": 2 * found["lora_alpha"]}))
    assert identified(folder, load_model(folder)) != before


def test_an_adapter_is_merged_before_it_is_rounded(trained):
    whole, rounded = load_model(trained("lora")), load_model(trained("lora"), torch.bfloat16)
    expected = {name: weight.bfloat16() for name, weight in whole.named_parameters()}
    torch.testing.assert_close(dict(rounded.named_parameters()), expected, atol=0, rtol=0)


@pytest.mark.parametrize("left_out", ["adapter_model.safetensors", None])
def test_an_adapter_beside_a_whole_model_is_refused(base, tmp_path, left_out):
    """transformers adds it, to the base that it names, and the weights' hash is of the model."""
    folder = tmp_path / "both"
    shutil.copytree(base, folder)
    lora = LoraConfig(target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(LlamaForCausalLM.from_pretrained(base), lora)
    adapted.save_pretrained(folder)
    if left_out is not None:
        (folder / left_out).unlink()
    refuses(r"model.safetensors and adapter_.*: a model or an adapter", load_model, folder)
    refuses(r"model.safetensors and adapter_.*: a model or an adapter", fingerprint, folder)


def test_pickled_weights_are_refused(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "old")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for read in (load_model, fingerprint, lambda x: adapted(x, "lora")):
        refuses(r"old has its weights as pickles .*: load it in transformers", read, folder)


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_a_schedule_without_a_length_is_of_the_bases_own(kind, base, tmp_path):
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    schedule = {"rope_type": kind, "factor": 4.0, "rope_theta": THETA, **bounds}
    folder = edited(base, tmp_path / "base", rope_parameters=schedule)
    tokens, model = random_tokens(2, SHORT), LlamaForCausalLM.from_pretrained(folder)
    for method in ("lora", "adape"):
        found = adapted(folder, method)  # for another length
        torch.testing.assert_close(found(tokens).logits, model(tokens).logits)


def edited(source, folder, **fields):
    """A copy of a model, or the same, with other fields in its config.json."""
    path = (folder if folder == source else shutil.copytree(source, folder)) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def test_the_yarn_of_a_base_goes_on_and_other_schedules_are_refused(base, tmp_path):
    yarn = {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn |= {"original_max_position_embeddings": SHORT // 2, "rope_theta": THETA}
    folder = edited(base, tmp_path / "yarn", rope_parameters=yarn)
    found = adapted(folder, "lora", "position=keep").config.rope_parameters
    assert found | yarn == found
    for method in ("lora", "yarn"):
        found = adapted(folder, method, "position=yarn").config.rope_parameters
        assert found | yarn | {"factor": 2 * LENGTH / SHORT} == found
        found = adapted(folder, method, "position=yarn", f"length={SHORT}").config.rope_parameters
        assert found | yarn == found  # it reaches as far
        message = r"base has YaRN with factor=2\.0.*position\.factor=null"
        refuses(message, adapted, folder, method, "position=yarn", "position.factor=3")
    adapted(base, "lora", "position=extended")  # which has a factor, too
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": THETA}
    folder = edited(base, tmp_path / "linear", rope_parameters=linear)
    adapted(folder, "lora")
    refuses(r"base_model=.*linear: position yarn .*rope_type='linear", adapted, folder, "yarn")


@pytest.mark.parametrize(
    ("method", "extra"), [("adape", True), ("adape", False), ("adape_lora", False)]
)
def test_checkpointing_reaches_every_weight_that_trains(base, blocks, method, extra):
    """Also those of the first layer, where nothing that goes in has a gradient if embeddings are
    frozen."""
    model = adapted(base, method, f"peft.extra={extra}").train()
    with torch.no_grad():  # at zero TAPE's maps would get few gradients
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter += 0.1 * torch.randn_like(parameter)
    plain = gradients(model, blocks[:2])
    for reentrant in (True, False):
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        torch.testing.assert_close(gradients(model, blocks[:2]), plain, atol=1e-6, rtol=1e-5)
    assert len(plain) == sum(p.requires_grad for p in model.parameters())
    assert all(gradient.abs().max() > 0 for gradient in plain.values())


def test_a_continued_run_equals_an_uninterrupted_one(extend, tmp_path):
    """Killed in its second half, and once more before it was saved."""
    settings = ["adape_lora", "trainer.max_steps=8", "peft.lora.dropout=0.1"]
    whole = extend(*settings, folder=tmp_path / "whole")
    killed = shutil.copytree(whole, tmp_path / "killed")
    for lost in ("checkpoint-8", "report"):
        shutil.rmtree(killed / lost)
        (killed / "adapter_model.safetensors").unlink()
        extend(*settings, folder=killed)
        assert fingerprint(whole) == fingerprint(killed)


@pytest.mark.parametrize("method", ["lora", "adape"])
def test_embeddings_that_are_the_head_stay_the_head(base, blocks, tmp_path, method):
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = adapted(make_llama(tmp_path / "tied", tokenizer, tie_word_embeddings=True), method)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1.0)
    for _ in range(3):
        model(input_ids=blocks, labels=blocks).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss = loss_of(model, blocks)
    plain = model.merge_and_unload() if isinstance(model, PeftModel) else model
    plain.save_pretrained(tmp_path / method)
    again = load_model(tmp_path / method)
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert loss_of(again, blocks) == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_head_of_its_own_stays_whatever_the_configuration_says(base, blocks, tmp_path, method):
    """Of checkpoints of other programs that say tie_word_embeddings and have two matrices."""
    folder = shutil.copytree(base, tmp_path / "base")
    saved = json.loads((folder / "config.json").read_text())
    assert saved["tie_word_embeddings"] is False
    (folder / "config.json").write_text(json.dumps(saved | {"tie_word_embeddings": True}))
    expected = loss_of(adapted(base, method), blocks)
    model = adapted(folder, method)
    assert loss_of(model, blocks) == expected
    model.save_pretrained(tmp_path / "saved")
    assert model.config.tie_word_embeddings is False


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 0.6, "top_p": 0.9, "pad_token_id": 7},
        {"length_penalty": 2.0, "early_stopping": True, "pad_token_id": -1},
        {"output_attentions": True, "use_cache": False, "cache_implementation": "static"},
    ],
)
def test_settings_of_generation_that_contradict_each_other(base, tmp_path, given):
    """What has no effect is not saved: transformers would refuse to save it, once it is aligned
    with the tokenizer."""
    folder = shutil.copytree(base, tmp_path / "base")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 9]} | given))
    model = adapted(folder, "ft")
    align_special_tokens(model, AutoTokenizer.from_pretrained(base))
    before = model.generation_config.to_dict()
    model.save_pretrained(tmp_path / "saved")
    assert model.generation_config.to_dict() == before
    assert {0, 9} <= {*load_model(tmp_path / "saved").generation_config.eos_token_id}
    wrong = {"num_return_sequences": 3}
    (folder / "generation_config.json").write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=r"base: .*num_return_sequences"):
        adapted(folder, "ft")


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"temperature": 0.1}, {"do_sample": True}),
        ({"top_k": 2}, {"do_sample": True}),
        ({"length_penalty": -3.0, "eos_token_id": [*range(0, 300, 3)]}, {"num_beams": 3}),
    ],
)
def test_settings_of_generation_that_a_call_asks_for_have_effect(base, tmp_path, given, asked):
    """As in transformers, which reads them from the file of a model."""
    folder = shutil.copytree(base, tmp_path / "base")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0} | given))
    prompt, found = torch.arange(5, 9)[None], []
    how = {"max_new_tokens": 12, "pad_token_id": 1} | asked
    for cls, own in ((LlamaForCausalLM, True), (TapeForCausalLM, True), (TapeForCausalLM, False)):
        model = cls.from_pretrained(folder).eval()
        if not own:
            model.generation_config = GenerationConfig(eos_token_id=0)
        torch.manual_seed(0)
        with torch.no_grad():
            found.append(model.generate(prompt, **how).tolist())
    assert found[0] == found[1] != found[2]


def test_frozen_weights_in_bfloat16_and_trained_ones_in_float32(extend, blocks):
    folder = extend("adape", "frozen=bfloat16", "trainer.bf16=true")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    for name, weight in load_file(folder / "model.safetensors").items():
        trains = re.search(r"context|embed_tokens|norm", name)
        assert weight.dtype == (torch.float32 if trains else torch.bfloat16), name
    model = load_model(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):  # what a base was rounded to, it was trained on
        assert loss_of(model, blocks) == pytest.approx(logged_loss(folder), abs=1e-5)


def test_an_adapter_finds_its_base_from_elsewhere(trained, base, tmp_path, monkeypatch, blocks):
    shutil.copytree(base, tmp_path / "models" / "base")
    own = load_model(trained("lora")).config.adaptation | {"base_model": "models/base"}
    folder = edited(trained("lora"), tmp_path / "output" / "lora", adaptation=own)
    monkeypatch.chdir(base)
    assert loss_of(load_model(folder), blocks) == pytest.approx(logged_loss(folder), abs=1e-5)
    with (tmp_path / "models" / "base" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    refuses(r"of base_model=models/base, but the weights in .* are not those", load_model, folder)
    shutil.rmtree(tmp_path / "models")
    refuses("adapter of base_model=models/base, and that folder d", load_model, folder)


def test_adapters_of_another_decoder_are_refused(trained, tmp_path):
    folder = shutil.copytree(trained("adape_lora"), tmp_path / "mixed")
    shutil.copy(trained("lora") / "config.json", folder)
    refuses(r"does not match the decoder in its config\.json", load_model, folder)
    edited(folder, folder, adaptation=None)
    refuses(r"base is not recorded in its config\.json", load_model, folder)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("adape position=keep peft.extra=false", "peft=adape: .*'rope' has no weights"),
        ("lora peft.lora.rank=0", "peft.lora.rank=0 must be an integer >= 1"),
        ("lora peft.lora.targets=[]", r"targets=\[\] must be a list from"),
        ("lora peft.lora.targets=[q_proj,x]", r"targets=\['q_proj', 'x'\] must be a list from"),
        ("lora +peft.lora.rnk=4", "peft.lora takes no argument 'rnk'; did you mean 'rank'"),
        ("lora peft.everything=true", "peft.everything=true with peft.lora"),
        ("lora peft.lora.dropout=1.0", r"peft.lora.dropout=1.0 must lie in \[0, 1\)"),
        ("lora peft.lora.alpha=-8", "peft.lora.alpha=-8 must be a finite number > 0"),
        ("adape peft.everything=maybe", "peft.everything='maybe' must be true or false"),
        ("longlora length=60", "peft.groups=4: length=60 must be a multiple of 8"),
        ("longlora position=alibi", "position 'alibi', which adds a bias to the scores"),
        ("lora frozen=bfloat16", r"frozen=bfloat16.*needs trainer\.bf16=true"),
        ("lora frozen=fp16", "unknown frozen 'fp16'"),
        ("lora base_model=null tokenizer=null", "peft=lora adapts a trained model: give"),
        ("lora base_model=/nowhere", "/nowhere"),
    ],
)
def test_settings_that_cannot_be_are_refused(extend, settings, message):
    refuses(message, extend, *settings.split())


def test_the_sizes_of_an_experiment_are_those_of_new_models(start, base, tmp_path):
    """A base has its own; those of the command line must be the same."""
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
    other = make_llama(tmp_path / "other", AutoTokenizer.from_pretrained(base), **sizes)
    given = ["peft=adape", f"base_model={other}", "trainer.max_steps=2"]
    with pytest.raises(ValueError, match=r"hidden_size=32, but \S+other has 48; .*layers=2, but"):
        start(*given, "model.hidden_size=32", "model.num_hidden_layers=2")
    model = load_model(start(*given, "model.num_hidden_layers=3"))
    assert {name: getattr(model.config, name) for name in sizes} == sizes


def test_bases_that_cannot_be_are_refused(trained, start, extend, base, tmp_path):
    with pytest.raises(ValueError, match="frozen=bfloat16: all weights are trained"):
        start(f"base_model={base}", "position=keep", "model=keep", "frozen=bfloat16")
    with pytest.raises(ValueError, match=r"is an adapter; merge it .* tape export"):
        extend("lora", f"base_model={trained('lora')}", f"tokenizer={trained('lora')}")
    folder = shutil.copytree(trained("lora"), tmp_path / "run")
    other = make_llama(tmp_path / "other", AutoTokenizer.from_pretrained(base), hidden_size=64)
    with pytest.raises(ValueError, match=r"another configuration:\n(.*\n)*  base_weights: "):
        extend("lora", f"base_model={other}", folder=folder)


def test_lora_trains_the_norms_that_are_named_alone(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    options = {"qk_norm": True, "scalable_softmax": True, "gated_attention": True}
    TapeForCausalLM(TapeConfig.from_pretrained(base, **options)).save_pretrained(folder)
    names = " ".join(trainable(adapted(folder, "lora")))
    assert "model.norm" in names and not re.search("q_norm|k_norm|softmax|output_gate", names)


@pytest.mark.parametrize("method", ["lora", "adape"])
def test_the_report_compares_with_the_base(trained, base, text, cache, method):
    """The same tokens as the result's, at every length, under the library's own Llama."""
    folder = trained(method)
    rows = json.loads((folder / "report" / "report.json").read_text())["perplexity"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    stream = tokenize_corpus(TextCorpus(text), "validation", tokenizer, cache)
    tokens = composed("experiment=quick").report.tokens
    llama = LlamaForCausalLM.from_pretrained(base).eval()
    windows = scored_windows(TapeForCausalLM.from_pretrained(base), stream, LENGTH, tokens)
    assert [row["length"] for row in rows] == [*windows]
    for row in rows:
        losses = []
        for start, first, stop in windows[row["length"]]:
            ids = torch.tensor(stream.tokens[start:stop].astype("int64"))[None]
            logits = llama(ids).logits.log_softmax(-1)[0, first - start - 1 : -1]
            losses.append(-logits.gather(-1, ids[0, first - start :, None]).detach())
        mean = torch.cat(losses).double().mean().exp().item()
        assert row["base_perplexity"] == pytest.approx(mean, rel=1e-4)
        assert row["base_perplexity"] != row["perplexity"]
    assert "| perplexity of the base |" in (folder / "report" / "report.md").read_text()
