"""Names, arguments and settings in conflict: one clear error each."""

import copy
import json
import pathlib
import re
import sys
import tomllib
from importlib import metadata

import pytest
import torch
from commands import ROOT
from conftest import TRAIN_LENGTH, make_config, make_model, random_tokens, refuses
from every_encoding import mixture
from omegaconf import OmegaConf
from test_floors import imports_of
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, LlamaConfig

import tape
from tape import TapeConfig, TapeForCausalLM, TapeModel
from tape.attention import backends as attention
from tape.encodings import ENCODINGS

ROTATING = ("rope", "tape", "xpos", "randpe", "yarn", "tape_yarn")


def test_shapes_that_an_encoding_cannot_have_are_refused():
    for position, changes, message in (
        *((name, {"hidden_size": 28}, "head_dim=7 must be even") for name in ROTATING),
        ("rope", {"num_key_value_heads": 3}, "num_attention_heads=4 must be a multiple of"),
        ("sincos", {"hidden_size": 33, "num_attention_heads": 3, "head_dim": 8}, "=33 must be"),
        ("tape_not_tensorial", {"num_key_value_heads": 2}, r"tensorial=false.*key_value_heads=2"),
    ):
        refuses(message, make_model, position, **changes)


def test_unknown_fields_are_refused(tmp_path):
    refuses("TapeConfig has no field 'temperature'", TapeConfig, temperature=8)
    make_config("rope").save_pretrained(tmp_path)
    message = "TapeConfig has no field 'postion'; did you mean 'position'"
    for source in (TapeConfig, AutoConfig, TapeForCausalLM):
        refuses(message, source.from_pretrained, tmp_path, postion=8)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"postion": 8}))
    refuses(message, TapeConfig.from_pretrained, tmp_path)
    path.write_text('{"model_type": "gpt2"}')
    refuses(r"gpt2.*allowed: 'tape', 'llama'", TapeForCausalLM.from_pretrained, tmp_path)


@pytest.mark.parametrize("name", ["bos_token_id", "eos_token_id", "pad_token_id"])
@pytest.mark.parametrize("family", ["tape", "llama"])
def test_special_tokens_lie_in_the_vocabulary(family, name, tmp_path):
    """At its ends, and in a list."""
    make_model("rope").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    saved = json.loads(path.read_text()) | {"model_type": family}
    saved = saved | {"position": "rope"} if family == "tape" else saved
    lists = [([0, 60], True), ([0, 61], False)] if name == "eos_token_id" else []
    first = [(-1, name == "pad_token_id"), (-2, False)]  # the first Llamas had -1 for none
    for given, is_allowed in ((60, True), (61, False), *first, *lists, (None, True)):
        path.write_text(json.dumps(saved | {name: given}))
        if is_allowed:
            assert getattr(TapeForCausalLM.from_pretrained(tmp_path).config, name) == given
            continue
        told = rf"{name}={re.escape(str(given))} must be null or lie in .*\.\.60, .* vocab_size=61;"
        for load in (TapeConfig.from_pretrained, TapeForCausalLM.from_pretrained):
            refuses(told, load, tmp_path)


SHAPE = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
# Of what versions 4 of transformers saved for a Llama: names that are gone, or resemble others.
LLAMA_4 = SHAPE | {
    "model_type": "llama",
    "max_sequence_length": 64,
    "rope_theta": 500000.0,
    "sep_token_id": None,
    "tie_encoder_decoder": False,
    "torch_dtype": "float16",
    "transformers_version": "4.46.0",
}


@pytest.mark.parametrize("saved", [LLAMA_4, LlamaConfig(**SHAPE, dtype="float16").to_dict()])
def test_saved_llama_configurations_load(tmp_path, saved, caplog):
    (tmp_path / "config.json").write_text(json.dumps(saved | {"attn_dropout": 0.0, "by": "us"}))
    config = TapeConfig.from_pretrained(tmp_path, bos_token_id=7)
    assert config.position["name"] == "rope"
    assert (config.bos_token_id, config.dtype) == (7, torch.float16)
    assert config.rope_parameters["rope_theta"] == saved.get("rope_theta", 10000.0)
    assert not caplog.records


def test_configurations_survive_copies_and_fields_of_their_users(tmp_path, caplog):
    config = make_config("tape", dtype="bfloat16", qk_norm=True)
    config.note = "mine"
    config.save_pretrained(tmp_path)
    for again in (copy.deepcopy(config), AutoConfig.from_pretrained(tmp_path)):
        assert again.to_diff_dict() == config.to_diff_dict()
    said = {each.getMessage() for each in caplog.records}
    assert said == {"no fields of TapeConfig, without effect: note"}


def test_attention_that_cannot_run_is_refused(monkeypatch):
    """transformers would take another in its place, or load a kernel from the hub."""
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: False)
    for position, kernel, message in (
        ("fire", "flash_attention_2", "with position 'fire'.*no score bias other than.*eager"),
        ("rope", "flash_attention_2", r"flash-attn package is missing.*EXTRAS=flash.*eager, sdpa"),
        ("tape", "spda", "did you mean 'sdpa'"),
        ("rope", "flash_attention_3", "with position 'rope': no such implementation"),
        ("rope", "kernels-community/flash-attn2", "with position 'rope': no such implementation"),
    ):
        refuses(message, make_model, position, kernel=kernel)
        for given in (kernel, {"": kernel}):
            refuses(message, make_model(position).set_attn_implementation, given)


def test_what_a_model_returns_and_takes():
    model, tokens = make_model("tape"), random_tokens(1, 9)
    assert isinstance(AutoModel.from_config(model.config), TapeModel)
    assert isinstance(AutoModelForCausalLM.from_config(model.config), TapeForCausalLM)
    refuses(r"output_attentions=True.*'sdpa'.*use 'eager'", model, tokens, output_attentions=True)
    refuses("exactly one", model)
    before = model(tokens, output_hidden_states=True)
    assert [tuple(x.shape) for x in before.hidden_states] == [(1, 9, 32)] * 4
    model.set_attn_implementation("eager")
    after = model(tokens, output_attentions=True)
    torch.testing.assert_close(after.logits, before.logits, atol=1e-5, rtol=1e-5)
    assert [weights.shape for weights in after.attentions] == [(1, 4, 9, 9)] * 3


def test_aliases_are_the_papers_names():
    names = {"adape": "tape", "randrope": "randpe", "t5rb": "t5", "adayarn": "tape_yarn"}
    assert {alias: make_config(alias).position["name"] for alias in names} == names


@pytest.mark.parametrize("position", ["yarn", "tape", "learned", "abacus", "randpe"])
def test_a_model_has_the_name_of_a_checkpoint_of_its_function(tmp_path, position):
    """TRL loads a reference model by it, and peft the base of an adapter."""
    saved = make_model(position)
    saved.save_pretrained(tmp_path)
    changed = TapeConfig.from_pretrained(tmp_path)
    changed.num_recurrences += 1
    for kind in (TapeForCausalLM, TapeModel, AutoModelForCausalLM):
        for change, name in (
            ({"use_cache": False, "max_position_embeddings": 2 * TRAIN_LENGTH}, str(tmp_path)),
            ({"position": saved.config.position}, str(tmp_path)),
            ({"position": "nope"}, ""),
            ({"config": changed}, ""),
        ):
            model = kind.from_pretrained(tmp_path, **change)
            parts = (model, model.base_model, model.config)
            assert {each.name_or_path for each in parts} == {name}, change


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_saved_configuration_says_every_argument(tmp_path, name):
    config = make_config({"name": name})
    config.save_pretrained(tmp_path)
    again = TapeConfig.from_pretrained(tmp_path)
    assert again.position == config.position
    assert again.rope_parameters == config.rope_parameters
    assert None not in config.position.values()


INDEX = {"name": "index"}
TAPES = {"width": 16, "attention": True, "feed_forward": True, "equivariant": True}
TAPES |= {"tensorial": True, "magnitudes": True, "init": "zero"}
PLACES = {"length": 64, "digits": [], "offset": 0}
YARNS = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}
YARNS |= {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}
# As the encodings' table says, for 3 layers, 4 heads, 32 channels and a trained length of 64.
DEFAULTS = {
    **{name: {} for name in ("nope", "rope", "rope_gain", "yarn", "alibi", "kerple")},
    **{name: {} for name in ("stick_breaking", "bam")},
    "sincos": {"base": 10_000.0},
    "learned": {"length": 64},
    "abacus": PLACES,
    "coupling": PLACES,
    "extended": {"method": "self_extend", "window": 16, "group": 6},
    "xpos": {"centre": 32.0, "scale_base": 2048.0},
    "randpe": {"sampler": {"name": "subset", "length": 256, "eval_length": 64, "seed": 0}},
    "fire": {"hidden": 32, "threshold": 512.0},
    "t5": {"num_buckets": 32, "max_distance": 128},
    "dape": {"width": 32},
    "relative": {"dimension": 16, "extent": 64},
    "cope": {"count": 64},
    "fox": {"start": 0.0},
    "pope": {"base": 10_000.0},
    "selective": {"rank": 16, "kernel": 4, "theta": 500_000.0, "values": False},
    "path": {"rank": 32, "kernel": 3, "gate": False},
    "grape_m": {"theta": 10_000.0, "shared": True, "contextual": False, "start": 0.001},
    "grape_ap": {"width": 8},
    "repo": {"theta": 10_000.0, "start": 1, "width": 4},
    "wall": {"start": 8.0, "scalar": False},
    "tape": TAPES,
    "tape_yarn": TAPES,
    "mixed": {"pattern": [{"name": x} for x in ("rope", "rope", "rope", "nope")], "length": 64},
    "carope": {"theta": 10_000.0, "values": False},
    "tapa": {"alpha": 0.1, "share": 0.5},
    "fope": {"length": 64, "gain": 0.3},
    "pko": {},
    "scale_invariant": {"tau": 10.0},
    "imaginary": {},
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_defaults_are_those_of_the_page_and_stand_in_one_place(name):
    config = make_config({"name": name}, max_position_embeddings=64)
    assert config.position == {"name": name, "sampler": INDEX} | DEFAULTS[name]
    rope = YARNS if "yarn" in name else {"rope_type": "default", "rope_theta": 10_000.0}
    assert config.rope_parameters == rope
    path = ROOT / "config" / "position" / f"{name}.yaml"
    if path.exists():  # a setting's value there is null, or that of the class
        given = OmegaConf.to_container(OmegaConf.load(path))
        written = {key: x for key, x in given.items() if key not in ("name", "defaults")}
        defaults = ENCODINGS[name].defaults()
        for key, value in written.items():
            if value is not None and not str(value).startswith("${"):
                default = defaults[key]
                assert value == (list(default) if isinstance(default, tuple) else default), key


def test_an_override_of_the_same_encoding_keeps_what_it_does_not_name(tmp_path):
    for saved, given, expected in (
        ({"name": "fire", "threshold": 6.0}, "fire", {"threshold": 6.0, "hidden": 32}),
        ({"name": "tape", "width": "3H"}, {"name": "adape", "sampler": "shift"}, {"width": 12}),
        ({"name": "t5", "num_buckets": 8}, {"name": "t5", "max_distance": 9}, {"num_buckets": 8}),
        ({"name": "t5", "num_buckets": 8}, "alibi", {"name": "alibi"}),
        ({"name": "grape_m", "theta": 9.0}, {"name": "grape_m", "theta": None}, {"theta": 9.0}),
        (
            {"name": "rope", "sampler": {"name": "subset", "length": 99, "seed": 5}},
            {"name": "rope", "sampler": {"name": "subset", "eval_length": 20, "length": None}},
            {"sampler": {"name": "subset", "length": 99, "eval_length": 20, "seed": 5}},
        ),
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


YARN = {"rope_type": "yarn", "factor": 4.0}
CLIPPED = {"name": "rope", "scaling": {"rope_type": "clipped"}}


@pytest.mark.parametrize(
    "given",
    [
        "yarn",
        {"name": "rope", "scaling": YARN},
        {"name": "tape", "scaling": YARN},
        CLIPPED,
        {"name": "extended", "method": "dca"},
        {"name": "extended", "factor": 2.0},
        mixture("yarn", "nope", CLIPPED),
        mixture("extended", "nope"),
    ],
    ids=str,
)
def test_what_is_put_on_a_checkpoint_refers_to_the_length_of_its_training(given, tmp_path):
    """Whether it is put there with a longer one at once, or before."""
    model, tokens = make_model({"name": "rope", "theta": 100.0}), random_tokens(1, 40)
    model.save_pretrained(tmp_path / "rope")
    longer = {"max_position_embeddings": 3 * TRAIN_LENGTH}
    torch.manual_seed(0)
    at_once = TapeForCausalLM.from_pretrained(tmp_path / "rope", position=given, **longer)
    TapeForCausalLM.from_pretrained(tmp_path / "rope", position=given).save_pretrained(tmp_path)
    before = TapeForCausalLM.from_pretrained(tmp_path, **longer)
    at_once.load_state_dict(before.state_dict())
    assert torch.equal(at_once(tokens).logits, before(tokens).logits)


@pytest.mark.parametrize("pattern", ["learned rope", "relative", "fope nope", "yarn", "extended"])
def test_a_mixture_loaded_with_another_length_is_the_same(pattern, tmp_path):
    rope = {"rope_theta": 100.0, "rope_type": "default"}
    model = make_model(mixture(*pattern.split()), rope_parameters=rope)
    tokens = random_tokens(1, 12)
    model.save_pretrained(tmp_path)
    longer = TapeForCausalLM.from_pretrained(tmp_path, max_position_embeddings=3 * TRAIN_LENGTH)
    assert torch.equal(longer(tokens).logits, model(tokens).logits)


def test_a_position_set_later_counts():
    config = make_config("alibi")
    config.position = "adape"
    assert TapeForCausalLM(config).config.position == make_config("tape").position
    config.position = {"name": "rope", "tehta": 1.0}
    refuses("did you mean 'theta'", TapeForCausalLM, config)


def canonical(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")


def test_every_import_is_declared():
    root = pathlib.Path(tape.__file__).parent.parent
    rooms = ("tape", "arithmetic", "scrolls", "tests")
    files = [path for room in rooms for path in (root / room).rglob("*.py")]
    ours = {*rooms, *(path.stem for path in files if path.parent.name == "tests")}
    ours |= sys.stdlib_module_names
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    declared = {canonical(each) for each in project["dependencies"] + extras}
    installed = metadata.packages_distributions()
    for path in files:
        for name in {module.partition(".")[0] for module in imports_of(path)} - ours:
            assert canonical(installed.get(name, [name])[0]) in declared, (path, name)
