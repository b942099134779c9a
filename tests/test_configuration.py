"""Names, arguments and settings in conflict: one clear error each."""

import ast
import copy
import json
import pathlib
import re
import sys
import tomllib
from importlib import metadata

import pytest
import torch
from conftest import make_config, make_model, random_tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig

import tape
from tape import TapeConfig, TapeForCausalLM, TapeModel
from tape.attention import backends as attention
from tape.positions import ALIASES, ENCODINGS

ROTATING = ("rope", "tape", "xpos", "randpe", "yarn", "tape_yarn")


@pytest.mark.parametrize(
    ("position", "message"),
    [
        ("alibii", r"unknown position encoding 'alibii'; did you mean 'alibi'\? Known: abacus"),
        ({"name": "fire", "hiden": 8}, r"'fire' takes no argument 'hiden'; did you mean 'hidden'"),
        ({"theta": 1.0}, r"unknown position encoding None"),
        ({"name": "rope", "theta": "x"}, r"theta='x' must be a number > 0"),
        ({"name": "tape", "theta": -1.0}, r"theta=-1.0 must be a number > 0"),
        ({"name": "rope", "sampler": "shft"}, r"unknown sampler 'shft'; did you mean 'shift'"),
        ({"name": "rope", "sampler": {"name": "shift", "length": 1}}, r"no argument 'length'"),
        (
            {"name": "rope", "scaling": {"rope_type": "dynamic"}},
            r"rope_type='dynamic'.*: clipped",
        ),
        (
            {"name": "rope", "scaling": {"rope_type": "longrope", "factor": 4.0}},
            r"rope_type='longrope' also needs long_factor",
        ),
        (
            {
                "name": "rope",
                "scaling": {"rope_type": "longrope", "factor": 4.0, "long_factor": [1.0, 0.5]},
            },
            r"long_factor=\[1.0, 0.5\] must be a list of 4 numbers >= 1",
        ),
        ({"name": "yarn", "scaling": {"rope_type": "linear"}}, r"yarn sets the scaling itself"),
        ({"name": "tape", "width": 0}, r"width=0"),
        ({"name": "tape", "width": "0H"}, r"width='0H' must be an integer > 0, or a multiple"),
        ({"name": "tape", "width": "4h"}, r"width='4h' must be an integer > 0, or a multiple"),
        ({"name": "t5", "num_buckets": 7}, r"num_buckets=7 must be even"),
        ({"name": "rope", "sampler": {"name": "shift", "maximum": -1}}, r"maximum=-1"),
        ({"name": "rope", "sampler": {"name": "shift", "maximum": 3.7}}, r"maximum=3\.7"),
        ({"name": "tape", "equivariant": "no"}, r"equivariant='no' must be true or false"),
        ({"name": "t5", "num_buckets": 8.0}, r"num_buckets=8\.0 must be an integer"),
        ({"name": "fire", "hidden": 0}, r"hidden=0 must be an integer >= 1"),
        ({"name": "xpos", "centre": "x"}, r"centre='x' must be a number"),
        ({"name": "randpe", "length": 50.5}, r"length=50\.5 must be an integer"),
        (None, r"unknown position encoding None"),
    ],
)
def test_bad_positions_are_refused(position, message):
    with pytest.raises(ValueError, match=message):
        make_model(position)


@pytest.mark.parametrize(
    ("position", "changes", "message"),
    [
        *((name, {"hidden_size": 28}, "head_dim=7 must be even") for name in ROTATING),
        ("rope", {"num_key_value_heads": 3}, "num_attention_heads=4 must be a multiple of"),
        (
            "sincos",
            {"hidden_size": 33, "num_attention_heads": 3, "head_dim": 8},
            "hidden_size=33 must be even",
        ),
        ("tape_not_tensorial", {"num_key_value_heads": 2}, r"tensorial=false.*key_value_heads=2"),
    ],
)
def test_shapes_that_an_encoding_cannot_have_are_refused(position, changes, message):
    with pytest.raises(ValueError, match=message):
        make_model(position, **changes)


@pytest.mark.parametrize(
    ("given", "meant"), [("postion", "; did you mean 'position'"), ("temperature", "")]
)
def test_unknown_fields_are_refused(tmp_path, given, meant):
    make_config("rope").save_pretrained(tmp_path)
    calls = [lambda: TapeConfig(**{given: 8}), lambda: AutoConfig.for_model("tape", **{given: 8})]
    if meant:  # others may be of the checkpoint's own
        calls += [
            lambda source=source: source.from_pretrained(tmp_path, **{given: 8})
            for source in (TapeConfig, AutoConfig, TapeForCausalLM)
        ]
    for call in calls:
        with pytest.raises(ValueError, match=f"TapeConfig has no field '{given}'{meant}"):
            call()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {given: 8}))
    for source in (TapeConfig, AutoConfig) if meant else ():
        with pytest.raises(ValueError, match=f"TapeConfig has no field '{given}'{meant}"):
            source.from_pretrained(tmp_path)


SHAPE = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
# All keys that versions 4 of transformers saved for a Llama, and two of others.
LLAMA_4 = SHAPE | json.loads("""{
"_name_or_path": "x", "_attn_implementation_autoset": true, "_commit_hash": null,
"_flash_attn_2_enabled": false, "add_cross_attention": false, "bad_words_ids": null,
"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
"begin_suppress_tokens": null, "bos_token_id": 1, "chunk_size_feed_forward": 0,
"cross_attention_hidden_size": null, "decoder_start_token_id": null, "do_sample": false,
"diversity_penalty": 0.0, "early_stopping": false, "encoder_no_repeat_ngram_size": 0,
"eos_token_id": 2, "exponential_decay_length_penalty": null, "finetuning_task": null,
"forced_bos_token_id": null, "forced_eos_token_id": null, "hidden_act": "silu",
"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "initializer_range": 0.02, "intermediate_size": 64,
"is_decoder": false, "is_encoder_decoder": false, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
"length_penalty": 1.0, "max_length": 20, "max_position_embeddings": 64, "min_length": 0,
"mlp_bias": false, "head_dim": 8, "model_type": "llama", "no_repeat_ngram_size": 0,
"num_beam_groups": 1, "num_beams": 1, "num_key_value_heads": 2, "num_return_sequences": 1,
"output_attentions": false, "output_hidden_states": false, "output_scores": false,
"pad_token_id": null, "prefix": null, "pretraining_tp": 1, "problem_type": null,
"pruned_heads": {}, "remove_invalid_values": false, "repetition_penalty": 1.0,
"return_dict": true, "return_dict_in_generate": false, "rms_norm_eps": 1e-05,
"rope_scaling": null, "rope_theta": 500000.0, "sep_token_id": null, "suppress_tokens": null,
"temperature": 1.0, "task_specific_params": null, "tf_legacy_loss": false,
"tie_encoder_decoder": false, "tie_word_embeddings": false, "tokenizer_class": null, "top_k": 50,
"top_p": 1.0, "torch_dtype": "float16", "torchscript": false, "transformers_version": "4.46.0",
"typical_p": 1.0, "use_bfloat16": false, "use_cache": true, "xla_device": null,
"quantization_config": {"quant_method": "gptq", "bits": 4}, "max_sequence_length": 64}""")


@pytest.mark.parametrize("saved", [LLAMA_4, LlamaConfig(**SHAPE, dtype="float16").to_dict()])
def test_saved_llama_configurations_load(tmp_path, saved, caplog):
    (tmp_path / "config.json").write_text(json.dumps(saved | {"attn_dropout": 0.0, "by": "us"}))
    config = TapeConfig.from_pretrained(tmp_path, bos_token_id=7)
    assert config.position["name"] == "rope"
    assert (config.bos_token_id, config.dtype) == (7, torch.float16)
    assert config.rope_parameters["rope_theta"] == saved.get("rope_theta", 10000.0)
    for position in ("rope", "tape"):
        given = {key: value for key, value in saved.items() if key != "model_type"}
        assert TapeConfig(**given, position=position).hidden_size == 32
        assert TapeConfig.from_dict(saved, position=position).hidden_size == 32
    assert not caplog.records


def test_configurations_survive_copies_and_fields_of_their_users(tmp_path, caplog):
    config = make_config("tape", dtype="bfloat16", qk_norm=True)
    config.note = "mine"
    config.save_pretrained(tmp_path)
    for again in (
        copy.deepcopy(config),
        TapeConfig(**config.to_dict()),
        TapeConfig.from_dict(config.to_dict()),
        AutoConfig.from_pretrained(tmp_path),
    ):
        assert again.to_diff_dict() == config.to_diff_dict()
    said = {each.getMessage() for each in caplog.records}
    assert said == {"no fields of TapeConfig, without effect: note"}
    unknown = {"return_unused_kwargs": True, "device_map": "cpu", "qk_norm": False}
    loaded, unused = AutoConfig.from_pretrained(tmp_path, **unknown)
    assert unused == {"device_map": "cpu"} and not loaded.qk_norm


@pytest.mark.parametrize(
    ("position", "kernel", "message"),
    [
        ("fire", "flash_attention_2", "with position 'fire'.*no score bias other than.*eager"),
        ("rope", "flash_attention_2", r"flash-attn package is missing.*EXTRAS=flash.*eager, sdpa"),
        ("tape", "spda", "did you mean 'sdpa'"),
    ],
)
def test_attention_that_cannot_run_is_refused(position, kernel, message, monkeypatch):
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        make_model(position, kernel=kernel)
    with pytest.raises(ValueError, match=message):
        make_model(position).set_attn_implementation(kernel)


def test_what_a_model_returns_and_takes():
    model, tokens = make_model("tape"), random_tokens(1, 9)
    assert isinstance(AutoModel.from_config(model.config), TapeModel)
    assert isinstance(AutoModelForCausalLM.from_config(model.config), TapeForCausalLM)
    with pytest.raises(ValueError, match=r"output_attentions=True.*'sdpa'.*use 'eager'"):
        model(tokens, output_attentions=True)
    with pytest.raises(ValueError, match="exactly one"):
        model()
    before = model(tokens, output_hidden_states=True)
    assert [tuple(x.shape) for x in before.hidden_states] == [(1, 9, 32)] * 4
    model.set_attn_implementation("eager")
    after = model(tokens, output_attentions=True)
    torch.testing.assert_close(after.logits, before.logits, atol=1e-5, rtol=1e-5)
    assert [weights.shape for weights in after.attentions] == [(1, 4, 9, 9)] * 3


def test_aliases_are_the_papers_names():
    assert ALIASES == {"adape": "tape", "randrope": "randpe", "t5rb": "t5", "adayarn": "tape_yarn"}
    for alias, name in ALIASES.items():
        assert make_config(alias).position["name"] == name


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_saved_configuration_says_every_argument(tmp_path, name):
    config = make_config({"name": name})
    config.save_pretrained(tmp_path)
    again = TapeConfig.from_pretrained(tmp_path)
    assert again.position == config.position
    assert again.rope_parameters == config.rope_parameters
    assert None not in config.position.values()


@pytest.mark.parametrize(
    ("saved", "given", "expected"),
    [
        ({"name": "fire", "threshold": 6.0}, "fire", {"threshold": 6.0, "hidden": 32}),
        ({"name": "tape", "width": "3H"}, {"name": "adape", "sampler": "shift"}, {"width": 12}),
        ({"name": "t5", "num_buckets": 8}, {"name": "t5", "max_distance": 9}, {"num_buckets": 8}),
        ({"name": "t5", "num_buckets": 8}, "alibi", {"name": "alibi"}),
    ],
)
def test_an_override_of_the_same_encoding_keeps_what_it_does_not_name(
    tmp_path, saved, given, expected
):
    make_config(saved).save_pretrained(tmp_path)
    position = TapeConfig.from_pretrained(tmp_path, position=given).position
    assert position | expected == position


def test_defaults_follow_from_fields_that_are_overridden_with_the_position(tmp_path):
    """A theta stays, also through an encoding that has none."""
    make_config("rope_theta").save_pretrained(tmp_path)
    other = {"max_position_embeddings": 100, "bos_token_id": 7}
    config = TapeConfig.from_pretrained(tmp_path, position="randpe", **other)
    assert config.position["sampler"]["length"] == 400 and config.bos_token_id == 7
    TapeConfig.from_pretrained(tmp_path, position="nope").save_pretrained(tmp_path / "nope")
    again = TapeConfig.from_pretrained(tmp_path / "nope", position="rope")
    assert again.rope_parameters["rope_theta"] == 500.0


def test_a_position_set_later_counts():
    config = make_config("alibi")
    config.position = "adape"
    assert TapeForCausalLM(config).config.position == make_config("tape").position
    config.position = {"name": "rope", "tehta": 1.0}
    with pytest.raises(ValueError, match="did you mean 'theta'"):
        TapeForCausalLM(config)


def canonical(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


def test_every_import_is_declared_and_every_dependency_is_used():
    root = pathlib.Path(tape.__file__).parent.parent
    packages = [path.parent for path in root.glob("*/__init__.py")]
    files = [path for package in packages for path in package.rglob("*.py")]
    scripts = [
        path for folder in (".", "benchmarks", "tests") for path in root.glob(f"{folder}/*.py")
    ]
    ours = {package.name for package in packages} | {path.stem for path in scripts}
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    required = {canonical(each) for each in project["dependencies"]}
    extras = {
        canonical(each) for extra in project["optional-dependencies"].values() for each in extra
    }
    installed = metadata.packages_distributions()
    imported = {
        canonical(installed.get(name, [name])[0])
        for path in files + scripts
        for name in imports(path)
        if name not in ours | sys.stdlib_module_names
    }
    assert imported <= required | extras
    # Loaded by transformers, lm-eval, Hydra and pytest, or run as a command.
    by_name = {"wandb", "tensorboard", "deepspeed"}
    by_name |= {"hydra-joblib-launcher", "hydra-submitit-launcher", "pytest-xdist", "ruff"}
    by_name |= {"mkdocs-material", "wonderwords"}
    assert (required | extras) - imported == {"tape"} | by_name
