"""An exported folder is the same model, in a process that has never heard of the package."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
import yaml
from commands import tape
from conftest import TRAIN_LENGTH, all_options, make_model, random_tokens, refuses
from every_encoding import POSITIONS
from safetensors.torch import load_file, save_file
from tokenizers.normalizers import Lowercase
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.dynamic_module_utils import get_imports

from arithmetic.problems import character_tokenizer
from tape import TapeForCausalLM
from tape.export import export, flatten, load, verify, write_code
from tape.export.card import model_card
from tape.export.family import family_config, write_config

LLAMAS = ["rope", "rope_pose", "yarn", "tape_neither_place"]
LLAMAS += [f"rope_{kind}" for kind in ("proportional", "theta", "linear", "llama3", "longrope")]


@pytest.fixture(scope="module")
def run(run_quick, text, tmp_path_factory):
    """A real run of eight steps, and its checkpoints, of a text in a folder that tells much."""
    place = tmp_path_factory.mktemp("export")
    (place / "secret-project").mkdir()
    secret = shutil.copy(text, place / "secret-project")
    return run_quick("name=trial", f"data.files={secret}", folder=place / "run")


CHECKS = """
import sys
sys.modules["tape"] = None  # importing it fails from here on
from pathlib import Path
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
torch.set_num_threads(1)
for folder in Path(sys.argv[1]).iterdir():
    expected = load_file(folder / "expected.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    # The Trainer shifts the labels of these classes when it smooths them.
    assert type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    with torch.no_grad():
        found = {"logits": model(expected["tokens"]).logits, **dict(model.named_buffers())}
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), (folder.name, name)
    print(folder.name)
"""


@pytest.mark.slow
def test_every_encoding_loads_without_the_package(tmp_path):
    tokens = random_tokens(2, 12)
    for name in POSITIONS:
        folder = tmp_path / "models" / name
        options = all_options(name) if name == "fox" else {}
        make_model(name, tie_word_embeddings=name == "alibi", **options).save_pretrained(folder)
        model = TapeForCausalLM.from_pretrained(folder).eval()
        buffers = {key: buffer.clone() for key, buffer in model.named_buffers()}
        with torch.no_grad():
            expected = {"tokens": tokens, "logits": model(tokens).logits, **buffers}
        save_file(expected, folder / "expected.safetensors")
        write_code(model, folder)
    words = [sys.executable, "-c", CHECKS, str(tmp_path / "models")]
    environment = os.environ | {"HF_MODULES_CACHE": str(tmp_path / "modules")}
    process = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert {*process.stdout.split()} == {*POSITIONS}, process.stderr[-3000:]


def test_with_the_package_its_own_code_is_used(tmp_path):
    (model := make_model("tape")).save_pretrained(tmp_path / "a")
    write_code(model, tmp_path / "a")
    for trust in (None, True):
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "a", trust_remote_code=trust)
        assert type(model) is TapeForCausalLM
    model.save_pretrained(tmp_path / "b")  # without the code, and so without its names
    assert "auto_map" not in json.loads((tmp_path / "b" / "config.json").read_text())


def test_the_export_needs_no_further_packages(tmp_path):
    """transformers demands every package that a file imports before it runs any of it."""
    modules = "tape.model.configuration", "tape.model.modeling"
    for file, source in flatten.flat_modules(*modules).items():
        assert not re.search(r"^ *(from|import) tape\b", source, re.MULTILINE), file
        (tmp_path / file).write_text(source)
        needed = set(get_imports(tmp_path / file)) - sys.stdlib_module_names
        assert needed <= {"torch", "transformers", "huggingface_hub"}, file


def test_imports_of_every_form():
    source = (
        'text = "é"\n'
        "from tape.positions import (\n    Positions,\n    sampling as s,\n)\n"
        "def f():\n    from tape.core import validation\n    return validation\n"
    )
    flat, imported = flatten.rewrite(source, "tape.some")
    assert flat == (
        'text = "é"\n'
        "from .positions import Positions\n"
        "from .positions_sampling import __name__ as _s\n"
        "from . import positions_sampling as s\n"
        "def f():\n    from .core_validation import __name__ as _validation\n"
        "    from . import core_validation as validation\n"
        "    return validation\n"
    )
    assert set(imported) == {"tape.core.validation", "tape.positions", "tape.positions.sampling"}
    for line in ("import tape.core.validation", "from . import validation", "from tape import X"):
        refuses(r"cannot be exported", flatten.rewrite, line, "tape.some")


@pytest.mark.parametrize("name", LLAMAS)
def test_a_llama_gives_the_same_logits(tmp_path, name):
    position = {"sampler": "shift"} | POSITIONS[name]  # which acts in training only
    grouped = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    model = make_model(position, **(grouped if "scaling" in position else {}))
    model.save_pretrained(tmp_path)
    write_config(model, tmp_path, "llama")
    llama, loaded = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loaded.values())
    assert llama.config.rope_parameters == model.config.rope_parameters
    tokens = random_tokens(2, 31)
    torch.testing.assert_close(llama(tokens).logits, model(tokens).logits, atol=1e-5, rtol=1e-5)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "position" not in saved
    assert saved["rope_theta"] == model.config.rope_parameters["rope_theta"]
    factors = {"yarn": 4.0, "rope_linear": 3.0, "rope_llama3": 8.0, "rope_longrope": 4.0}
    assert (saved["rope_scaling"] or {}).get("factor") == factors.get(name)


def test_what_is_no_llama_is_refused():
    for name in {*POSITIONS} - {*LLAMAS}:
        with pytest.raises(ValueError, match=rf"'{POSITIONS[name]['name']}': a Llama.*allowed: r"):
            family_config(make_model(name), "llama")


@pytest.mark.slow
def test_another_function_is_noticed(tmp_path):
    model = make_model("rope")
    model.save_pretrained(tmp_path)
    write_config(model, tmp_path, "llama")
    config = tmp_path / "config.json"
    config.write_text(re.sub(r'"rope_theta": [\d.]+', '"rope_theta": 9000.0', config.read_text()))
    with pytest.raises(ValueError, match=r"different logits from the model: they differ by up to"):
        verify(model, tmp_path, "llama")


def test_a_run_is_exported_with_its_card(run):
    out = export(run, run / "sheep")
    assert not list(run.glob(".sheep*"))
    ids = [AutoTokenizer.from_pretrained(folder)("3 sheep").input_ids for folder in (out, run)]
    assert ids[0] == ids[1]
    config = json.loads((out / "config.json").read_text())
    assert config["use_cache"]
    assert config["auto_map"]["AutoConfig"] == "model_configuration.TapeConfig"
    card = (out / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers" and not {"license", "base_model"} & head.keys()
    report = json.loads((run / "report" / "report.json").read_text())
    assert f"{report['parameters']:,} parameters" in card and "name: tape" in card
    assert "2501.00712" in card and 'from_pretrained("sheep", trust_remote_code=True)' in card
    for path in out.iterdir():
        text = path.read_bytes()
        assert b"secret-project" not in text and bytes(run.parent) not in text, path


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_card_names_the_base(run, tmp_path, is_adapted):
    """Of an adapter, from its configuration; of a model all of which was trained, from its run."""
    folder = shutil.copytree(run, tmp_path / "run")
    path = folder / ("config.json" if is_adapted else "run.json")
    before = json.loads(path.read_text())
    # The weights of a local folder are recorded by a hash, those of the hub by a revision.
    for base, told, weights in (("meta/Llama", "meta/Llama", 40), ("/home/me/own/", "own", 64)):
        change = {"base_model": base, "base_weights": "0" * weights}
        path.write_text(json.dumps(before | ({"adaptation": change} if is_adapted else change)))
        model, _, recorded = load(folder)
        head = model_card(model, True, recorded, "sheep", "tape").split("---")[1]
        assert yaml.safe_load(head).get("base_model") == told
        assert ("name on the hub" in head) == (told == "own")


def test_a_card_tells_how_the_base_was_adapted_and_stored(tmp_path):
    base, model = tmp_path / "base", make_model("rope")
    base.mkdir()
    (base / "imported.json").write_text('{"stored": {"Q4_1": 210, "F32": 61}}')
    lora = {"rank": 8, "alpha": 16, "dropout": 0, "targets": ["q_proj"]}
    change = {"base_model": str(base), "base_weights": "0" * 64}
    model.config.adaptation = change | {"method": {"name": "lora", "lora": lora}}
    model.save_pretrained(tmp_path / "run")
    model, _, recorded = load(tmp_path / "run")
    card = model_card(model, True, recorded, "sheep", "tape")
    told = "The weights come from `base`, adapted with `peft=lora` (LoRA of rank 8, merged)."
    stored = "Those of the base were stored as Q4_1, F32 before they were imported."
    assert f"\n\n{told}\n\n{stored}\n\n## Versions" in card
    assert "The weights come from" not in model_card(model, True, {}, "sheep", "tape")


@pytest.mark.parametrize("format", ["tape", "llama"])
def test_an_exported_file_holds_the_tensors_of_the_model(format, tmp_path):
    """Their names, shapes, dtypes and values; the program that checks the logits casts its own."""
    model = make_model("rope", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "run")
    out = export(tmp_path / "run", tmp_path / "out", format)
    found, expected = load_file(out / "model.safetensors"), model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == torch.bfloat16 and torch.equal(tensor, expected[name]), name
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    names = {"config.json", "generation_config.json", "model.safetensors", "README.md"}
    files = {path.name for path in out.iterdir()}
    assert names <= files and all(name.endswith(".py") for name in files - names)
    assert (files == names) == (format == "llama")


def test_a_tokenizer_without_unknown_words_is_exported(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.save_pretrained(tmp_path / "run")
    # Of which the check takes no more tokens than they have positions in an evaluation.
    for name, limit in (("learned", "length"), ("randpe", "eval_length")):
        position = {"name": name, limit: TRAIN_LENGTH // 2}
        make_model(position, vocab_size=len(tokenizer)).save_pretrained(tmp_path / "run")
        out = export(tmp_path / "run", tmp_path / name)
        found = AutoTokenizer.from_pretrained(out)("12+3=")["input_ids"]
        assert found == tokenizer("12+3=")["input_ids"]


def test_what_cannot_be_exported_is_refused(run, tmp_path, monkeypatch):
    out, cut = tmp_path / "out", shutil.copytree(run, tmp_path / "cut")
    weights = cut / "checkpoint-8" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    (cut / "model.safetensors").unlink()
    damaged = "damaged checkpoint (model.safetensors is missing, or changed after it was written)"
    for folder, target, message in (
        (tmp_path / "nothing", out, "nothing is not a folder"),
        (cut, out, "has no model.safetensors"),
        (cut / "checkpoint-8", out, damaged),
        (run, run, "already exists"),
    ):
        refuses(re.escape(message), export, folder, target)
    with pytest.raises(SystemExit, match=r"error: .* a Llama computes another function"):
        tape("export", run, "--out", out, "--format", "llama")
    assert not out.exists() and not list(tmp_path.glob(".out*"))
    with monkeypatch.context() as meanwhile, pytest.raises(OSError, match=r"not empty: '.*/out'"):
        meanwhile.setattr("tape.export.verify", lambda *_: shutil.copytree(cut, out))
        export(run, out)
    shutil.rmtree(out)
    save = PreTrainedTokenizerFast.save_pretrained

    def damage(tokenizer, folder):
        tokenizer.backend_tokenizer.normalizer = Lowercase()
        save(tokenizer, folder)
        tokenizer.backend_tokenizer.normalizer = None

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", damage)
    refuses("is another one once it is saved", export, run, out)
    assert not out.exists()
