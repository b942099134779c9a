"""Adapting a base model: what trains, what is saved, what comes back, and what is refused."""

import json
import re
import shutil
from functools import cache as cached
from importlib.util import find_spec

import pytest
import torch
from conftest import all_positions, composed, gradients, make_model
from omegaconf import OmegaConf
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.quantizers.quantizers_utils import should_convert_module

from tape import TapeConfig, TapeForCausalLM
from tape.data import TextCorpus, TokenBlocks, tokenize_corpus, train_tokenizer
from tape.export import load as load_for_export
from tape.export.llama import require_llama, write_llama_config
from tape.model.adapters import Method, adapt, trainable
from tape.model.checkpoint import fingerprint, load, load_model, read_tokenizer
from tape.model.frozen import cast_frozen, loading
from tape.runs.metrics import read_metrics
from tape.training.build import adapt_model, adapted_config, identity

WHOLE = ["adape", "ft", "norms", "drope"]  # saved as whole models
METHODS = ["lora", "longlora", "thetalora", "yarn", "adape_lora", *WHOLE]
ROTARY = ["lora", "longlora", "thetalora", "yarn", "ft"]
THETA, SHORT, LENGTH = 5000.0, 16, 64  # of the base, and extended to
SMALL = ["trainer.max_steps=4", "trainer.learning_rate=1e-2", f"length={LENGTH}"]


def make_llama(folder, tokenizer, **changes):
    """A Llama of transformers', with grouped queries."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": SHORT,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        **changes,
    }
    llama = LlamaForCausalLM(LlamaConfig(**shape))
    with torch.no_grad():
        for name, parameter in llama.named_parameters():
            if "norm" not in name:
                parameter *= 4.0  # so that attention is not flat
    llama.save_pretrained(folder)
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
    rows = read_metrics(folder / "metrics.jsonl")
    return [row["eval_loss"] for row in rows if "eval_loss" in row][-1]


def adapted(base, method, *overrides):
    """The model of a run before its first step."""
    cfg = composed(f"peft={method}", f"base_model={base}", f"length={LENGTH}", *overrides)
    settings = OmegaConf.to_container(cfg, resolve=True)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    config = adapted_config(str(base), settings["model"], settings["position"])
    model = adapt_model(str(base), config, tokenizer)
    return adapt(model, Method.of(settings["peft"]), str(base), identity(str(base)))


@pytest.mark.parametrize("method", METHODS)
def test_what_was_trained_is_what_is_saved_and_merged(trained, base, blocks, tmp_path, method):
    folder = trained(method)
    loss = logged_loss(folder)
    assert loss < loss_of(load_model(base), blocks) - 0.1
    whole = (folder / "model.safetensors").exists()
    assert whole == (method in WHOLE)
    assert (folder / "adapter_model.safetensors").exists() == (not whole)
    assert not [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt")]

    model, _ = load(folder)
    assert type(model) is TapeForCausalLM
    assert loss_of(model, blocks) == pytest.approx(loss, abs=1e-5)
    assert model.config.adaptation["method"]["name"] == method
    assert model.config.adaptation["base_model"] == str(base)
    assert model.config.max_position_embeddings == LENGTH

    model.save_pretrained(tmp_path)
    if method in ROTARY:
        require_llama(model)
        write_llama_config(model, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is (LlamaForCausalLM if method in ROTARY else TapeForCausalLM)
    assert loss_of(again, blocks) == pytest.approx(loss, abs=1e-5)


EVERY_LAYER = ("input_layernorm", "post_attention_layernorm")
EXTRA = {"model.embed_tokens", "model.norm", *(f"model.layers.*.{n}" for n in EVERY_LAYER)}
LORA = {
    f"model.layers.*.self_attn.{projection}.lora_{factor}"
    for projection in ("q_proj", "k_proj", "v_proj", "o_proj")
    for factor in "AB"
}
TAPE = {f"model.layers.*.context.{name}" for name in ("mix", "gate", "up", "down")}
EVERYTHING = {
    *(EXTRA | {"lm_head"}),
    *(f"model.layers.*.self_attn.{name}_proj" for name in "qkvo"),
    *(f"model.layers.*.mlp.{name}_proj" for name in ("gate", "up", "down")),
}
TRAINED = {
    "lora": LORA,
    "longlora": LORA,
    "thetalora": LORA,
    "yarn": LORA,
    "adape": TAPE,
    "adape_lora": TAPE | LORA,
}


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("extra", [True, False])
def test_exactly_the_documented_weights_train(base, method, extra):
    model = adapted(base, method, f"peft.extra={extra}")
    counts = trainable(model)
    assert counts.keys() == (TRAINED[method] | EXTRA if extra else TRAINED[method])
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters() if p.requires_grad)
    if counts.keys() >= TAPE:  # 2 of 4 query heads to a key/value head; none in the last layer
        assert {name[23:]: counts[name] for name in TAPE} == {
            "mix": 2 * 4,
            "gate": 16 * 32,
            "up": 16 * 2,
            "down": 2 * 16,
        }
    if counts.keys() >= LORA:
        assert counts["model.layers.*.self_attn.q_proj.lora_A"] == 2 * 8 * 32
        assert counts["model.layers.*.self_attn.k_proj.lora_B"] == 2 * 16 * 8


GAPS = ([0, 1, 2, 3], [0, 3, 5, 9])


@torch.no_grad()
def test_ft_and_drope_train_everything_and_drope_has_no_positions(base):
    assert trainable(adapted(base, "ft")).keys() == EVERYTHING
    model = adapted(base, "drope", f"length={SHORT}")
    assert trainable(model).keys() == EVERYTHING
    assert model.config.max_position_embeddings == SHORT
    weights, llama = model.state_dict(), load_model(base)
    assert weights.keys() == llama.state_dict().keys()
    assert all(torch.equal(weights[name], x) for name, x in llama.state_dict().items())
    tokens = torch.tensor([[5, 6, 7, 8]])
    logits = [model.eval()(tokens, position_ids=torch.tensor([row])).logits for row in GAPS]
    assert torch.equal(*logits) and not torch.equal(logits[0], llama(tokens).logits)


@pytest.mark.parametrize(
    ("overrides", "theta", "stretch"),
    [
        ([], 1e6, 2),
        (["position.scaling=null"], 1e6, 1),
        (["position.theta=null"], THETA, 2),
        (["position.theta=20000", "position.scaling.factor=3"], 2e4, 3),
    ],
)
def test_theta_scaling_is_what_was_configured(base, overrides, theta, stretch):
    expected = torch.tensor([theta ** (-2 * f / 8) / stretch for f in range(4)])
    model = adapted(base, "thetalora", *overrides)
    torch.testing.assert_close(model.get_base_model().model.position.inv_freq, expected)


def test_frequencies_come_back(trained):
    found = load_model(trained("thetalora")).model.position.inv_freq
    torch.testing.assert_close(found, torch.tensor([1e6 ** (-2 * f / 8) / 2 for f in range(4)]))
    yarn = load_model(trained("yarn")).config.rope_parameters
    expected = {"factor": LENGTH / SHORT, "rope_theta": THETA}
    assert yarn | expected | {"original_max_position_embeddings": SHORT} == yarn


@pytest.mark.parametrize(
    ("method", "position"), [("lora", "yarn"), ("adape", "tape_yarn"), ("yarn", "yarn")]
)
def test_yarn_extends_the_length_of_its_base(base, method, position):
    found = adapted(base, method, f"position={position}").config.rope_parameters
    expected = {"factor": LENGTH / SHORT, "original_max_position_embeddings": SHORT}
    assert found | expected == found
    loaded = TapeForCausalLM.from_pretrained(base, position=position, max_position_embeddings=99)
    assert loaded.config.rope_parameters["original_max_position_embeddings"] == SHORT


@pytest.mark.parametrize("method", ["lora", "yarn"])
def test_the_yarn_of_a_base_is_kept(base, tmp_path, method):
    folder = shutil.copytree(base, tmp_path / "base")
    saved = json.loads((folder / "config.json").read_text())
    yarn = {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0}
    yarn |= {"original_max_position_embeddings": SHORT // 2}
    saved["rope_parameters"] |= yarn
    (folder / "config.json").write_text(json.dumps(saved))
    found = adapted(folder, method, "position=yarn").config.rope_parameters
    assert found | yarn == found
    with pytest.raises(ValueError, match=r"base has YaRN with factor=2\.0.*position\.factor=null"):
        adapted(folder, method, "position=yarn", "position.factor=3")


def test_lora_trains_the_norms_that_are_named_alone(base, tmp_path):
    folder = tmp_path / "normed"
    config = TapeConfig.from_pretrained(base, qk_norm=True)
    TapeForCausalLM(config).save_pretrained(folder)
    read_tokenizer(base).save_pretrained(folder)
    names = [*trainable(adapted(folder, "lora"))]
    assert any(name.endswith("model.norm") for name in names)
    assert not [name for name in names if "q_norm" in name or "k_norm" in name]


def test_yarn_on_a_base_that_is_scaled_is_refused(base, tmp_path):
    folder = shutil.copytree(base, tmp_path / "base")
    saved = json.loads((folder / "config.json").read_text())
    saved["rope_parameters"] |= {"rope_type": "linear", "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(saved))
    adapted(folder, "lora")
    with pytest.raises(ValueError, match=r"base_model=.*base: position yarn .*rope_type='linear'"):
        adapted(folder, "yarn")


@torch.no_grad()
@pytest.mark.parametrize("method", ["adape", "adape_lora", "lora"])
def test_before_the_first_step_it_is_the_llama(base, blocks, method):
    ours = adapted(base, method).eval()(input_ids=blocks).logits
    rope = load_model(base)(blocks).logits
    assert torch.equal(ours, rope)
    llama = LlamaForCausalLM.from_pretrained(base).eval()(blocks).logits
    torch.testing.assert_close(ours, llama, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["adape", "adape_lora"])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_reaches_every_weight_that_trains(base, blocks, method, extra, reentrant):
    """Also those of the first layer, where nothing that goes in has a gradient if embeddings are
    frozen."""

    model = adapted(base, method, f"peft.extra={extra}").train()
    with torch.no_grad():  # at zero TAPE's maps would get few gradients
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    plain = gradients(model, blocks[:2])
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    torch.testing.assert_close(gradients(model, blocks[:2]), plain, atol=1e-6, rtol=1e-5)
    assert any("layers.0.context" in name for name in plain)
    assert not any("layers.1.context" in name for name in plain)
    assert len(plain) == sum(p.requires_grad for p in model.parameters())
    assert all(gradient.abs().max() > 0 for gradient in plain.values())


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("lora", ["peft.lora.dropout=0.1"]),
        ("adape_lora", []),
        pytest.param("adape", [], marks=pytest.mark.slow),
    ],
)
def test_a_continued_run_equals_an_uninterrupted_one(extend, tmp_path, method, changes):
    settings = ["trainer.max_steps=8", "trainer.logging_steps=3", *changes]
    name = "model.safetensors" if method == "adape" else "adapter_model.safetensors"
    whole = extend(method, *settings, folder=tmp_path / "whole")
    killed = shutil.copytree(whole, tmp_path / "killed")
    shutil.rmtree(killed / "checkpoint-8")
    (killed / name).unlink()
    extend(method, *settings, folder=killed)
    one, other = load_file(whole / name), load_file(killed / name)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert fingerprint(whole) == fingerprint(killed)
    before = (killed / name).read_bytes()
    (killed / name).unlink()  # as if killed before it was saved
    extend(method, *settings, folder=killed)
    assert (killed / name).read_bytes() == before


def test_embeddings_that_are_the_head_stay_the_head(base, blocks, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tied = make_llama(tmp_path / "tied", tokenizer, tie_word_embeddings=True)
    for method in ("lora", "adape"):
        model = adapted(tied, method)
        train = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(train, 1.0)
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


@pytest.mark.parametrize("method", ["adape", "lora"])
def test_frozen_weights_in_bfloat16_and_trained_ones_in_float32(extend, blocks, method):
    folder = extend(method, "frozen=bfloat16", "trainer.bf16=true")
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    if method == "adape":
        saved = load_file(folder / "model.safetensors")
        for name, weight in saved.items():
            trains = re.search(r"context|embed_tokens|norm", name)
            assert weight.dtype == (torch.float32 if trains else torch.bfloat16), name
    model = load_model(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    frozen = [p for name, p in model.named_parameters() if ".mlp." in name]
    assert frozen and all(torch.equal(p, p.bfloat16().float()) for p in frozen)
    if method == "adape":  # what a base was rounded to, it was trained on
        with torch.autocast("cpu", torch.bfloat16):
            assert loss_of(model, blocks) == pytest.approx(logged_loss(folder), abs=1e-5)


def test_weights_that_train_are_not_rounded_on_the_way(base):
    model = adapted(base, "adape")
    before = {name: p.clone() for name, p in model.named_parameters()}
    cast_frozen(model, "bfloat16")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter, before[name])
        else:
            assert torch.equal(parameter, before[name].bfloat16())


def test_an_adapter_is_exported_as_a_plain_model(trained, blocks):
    model, tokenizer, _ = load_for_export(trained("adape_lora"))
    assert loss_of(model, blocks) == pytest.approx(logged_loss(trained("adape_lora")), abs=1e-5)
    assert len(tokenizer) == 300


def test_an_adapter_finds_its_base_from_elsewhere(trained, base, tmp_path, monkeypatch, blocks):
    shutil.copytree(base, tmp_path / "models" / "base")
    folder = shutil.copytree(trained("lora"), tmp_path / "output" / "lora")
    config = json.loads((folder / "config.json").read_text())
    config["adaptation"]["base_model"] = "models/base"
    (folder / "config.json").write_text(json.dumps(config))
    for place in (tmp_path, tmp_path / "output", base):
        monkeypatch.chdir(place)
        assert loss_of(load_model(folder), blocks) == pytest.approx(logged_loss(folder), abs=1e-5)
    with (tmp_path / "models" / "base" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(
        ValueError, match=r"of base_model=models/base, but the weights in .* are not those"
    ):
        load_model(folder)
    shutil.rmtree(tmp_path / "models")
    with pytest.raises(ValueError, match="adapter of base_model=models/base, and that folder d"):
        load_model(folder)


def test_adapters_of_another_decoder_are_refused(trained, tmp_path):
    folder = shutil.copytree(trained("adape_lora"), tmp_path / "mixed")
    shutil.copy(trained("lora") / "config.json", folder)
    with pytest.raises(ValueError, match=r"does not match the decoder in its config\.json"):
        load_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"adaptation": None}))
    with pytest.raises(ValueError, match=r"base is not recorded in its config\.json"):
        load_model(folder)


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("adape", ["position=keep", "peft.extra=false"], "peft=adape: .*'rope' has no weights"),
        ("lora", ["peft.lora.rank=0"], "peft.lora.rank=0 must be an integer >= 1"),
        (
            "lora",
            ["peft.lora.targets=[q_proj,x]"],
            r"targets=\['q_proj', 'x'\] must be a list from",
        ),
        ("lora", ["peft.lora.rank=4096"], r"peft\.lora\.rank=4096 must be an integer in 1\.\.\d+"),
        ("lora", ["peft.lora.dropout=1.0"], r"peft.lora.dropout=1.0 must lie in \[0, 1\)"),
        ("lora", ["+peft.lora.rnk=4"], "peft.lora takes no argument 'rnk'; did you mean 'rank'"),
        ("lora", ["peft.everything=true"], "peft.everything=true with peft.lora"),
        ("longlora", ["length=60"], "peft.groups=4: length=60 must be a multiple of 8"),
        ("longlora", ["model.attn_implementation=eager"], "attn_implementation='eager'; allowed"),
        ("longlora", ["position=alibi"], "position 'alibi', which adds a bias to the scores"),
        ("lora", ["frozen=bfloat16"], r"frozen=bfloat16.*needs trainer\.bf16=true"),
        ("lora", ["frozen=fp16"], "unknown frozen 'fp16'"),
        ("adape", ["frozen=nf4", "trainer.bf16=true"], "LoRA only"),
        ("lora", ["base_model=null", "tokenizer=null"], "peft=lora adapts a trained model: give"),
        ("lora", ["base_model=/nowhere"], "/nowhere"),
    ],
)
def test_settings_that_cannot_be_are_refused(extend, method, overrides, message):
    with pytest.raises(ValueError, match=message):
        extend(method, *overrides)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_quantized_base_without_a_gpu_is_refused(extend):
    with pytest.raises(ValueError, match="frozen=nf4: there is no CUDA device"):
        extend("lora", "frozen=nf4", "trainer.bf16=true")


def test_frozen_weights_without_a_method_are_refused(start, base):
    with pytest.raises(ValueError, match="frozen=bfloat16: all weights are trained"):
        start(f"base_model={base}", "position=keep", "model=keep", "frozen=bfloat16")


@pytest.mark.parametrize("method", ["lora", "adape", "adape_lora"])
def test_the_sizes_of_an_experiment_are_those_of_new_models(start, base, tmp_path, method):
    """A base has its own; those of the command line must be the same."""
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3}
    other = make_llama(tmp_path / "other", AutoTokenizer.from_pretrained(base), **sizes)
    given = [f"peft={method}", f"base_model={other}", "trainer.max_steps=2"]
    message = (
        r"model\.hidden_size=32, but \S+other has 48; model\.num_hidden_layers=2, but .* has 3; "
        r"leave these out, and give model=keep"
    )
    with pytest.raises(ValueError, match=message):
        start(*given, "model.hidden_size=32", "model.num_hidden_layers=2")
    model = load_model(start(*given, "model.num_hidden_layers=3"))
    assert {name: getattr(model.config, name) for name in sizes} == sizes


def test_an_adapter_is_no_base(trained, extend):
    with pytest.raises(ValueError, match=r"is an adapter; merge it .* tape export"):
        extend("lora", f"base_model={trained('lora')}", f"tokenizer={trained('lora')}")


def test_another_base_in_the_same_folder_is_refused(extend, base, tmp_path):
    mine = shutil.copytree(base, tmp_path / "mine")
    folder = extend("lora", f"base_model={mine}", "trainer.max_steps=2")
    model = LlamaForCausalLM.from_pretrained(mine)
    with torch.no_grad():
        model.lm_head.weight += 1
    model.save_pretrained(mine)
    with pytest.raises(ValueError, match="another configuration:\n  base_weights: "):
        extend("lora", f"base_model={mine}", "trainer.max_steps=3", folder=folder)


@pytest.mark.parametrize("method", METHODS)
def test_the_papers_recipe_takes_every_method(method):
    cfg = composed("experiment=llama_extend", f"peft={method}", "data=local")
    trainer, recipe = cfg.trainer, OmegaConf.to_container(cfg.peft)
    assert Method.of(recipe).name == method and cfg.name == f"llama_{method}"
    assert trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps == 64
    assert (cfg.length, trainer.max_steps, trainer.learning_rate) == (8192, 1000, 2e-5)
    assert cfg.tokenizer == cfg.base_model == "meta-llama/Llama-2-7b-hf"


@all_positions
def test_only_linear_maps_that_are_frozen_are_quantized(position, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    skipped = loading("int8")["quantization_config"].llm_int8_skip_modules
    modules = make_model(position).named_modules()
    linears = [name for name, module in modules if isinstance(module, torch.nn.Linear)]
    quantized = {name for name in linears if should_convert_module(name, skipped)}
    parts = [f"self_attn.{name}_proj" for name in "qkvo"]
    parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    assert quantized == {f"model.layers.{layer}.{part}" for layer in range(3) for part in parts}


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or find_spec("bitsandbytes") is None,
    reason="needs a CUDA device and bitsandbytes",
)
@pytest.mark.parametrize("frozen", ["int8", "nf4"])
def test_a_quantized_base_is_adapted(extend, blocks, frozen):
    folder = extend("lora", f"frozen={frozen}", "trainer.bf16=true")
    model = load_model(folder)  # on the base as it was
    assert loss_of(model, blocks.to(model.device)) == pytest.approx(logged_loss(folder), abs=0.05)
