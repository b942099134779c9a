"""Tiny models of every encoding, with all of its weights perturbed, and tiny runs."""

import gc
import json
import os
import re
import shutil

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("SCROLLS_DIR", None)

import sys
from copy import deepcopy
from functools import cache as cached
from functools import partial
from pathlib import Path

import absl.logging
import numpy as np
import pytest
import torch
from commands import ROOT, tape, unchanged_logging
from every_encoding import COUNTED, GROUPED, POSITIONS
from transformers import DynamicCache, StaticCache

from tape import TapeConfig, TapeForCausalLM
from tape.cli import train
from tape.cli.settings import composition as command
from tape.encodings import ENCODINGS

# rouge_score has absl log to the stderr of the moment, here pytest's; Hydra's set-up of logging has
# absl close it, if it is not this one.
absl.logging.use_absl_handler()
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

torch.set_num_threads(1)  # tests run side by side, on matrices too small to share

TRAIN_LENGTH = 16
VOCABULARY = 61


def make_config(position="tape", **changes) -> TapeConfig:
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": TRAIN_LENGTH,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    position = POSITIONS.get(position, position) if isinstance(position, str) else position
    return TapeConfig(**(shape | {"position": position} | changes))


def fields_of_llama(config, *more) -> dict:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    names += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    names += ("rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(config, name) for name in (*names, *more)}


OF_ENCODINGS_AND_OPTIONS = re.compile(r"\.(context|position|sink|softmax|q_norm|k_norm)\.")


def perturb(model: TapeForCausalLM, std: float = 0.3) -> TapeForCausalLM:
    """At zero initialisation TAPE and all of its ablations are RoPE, and a test would be empty."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if OF_ENCODINGS_AND_OPTIONS.search(name):
                parameter += std * torch.randn_like(parameter)
            elif "norm" not in name:
                parameter *= 4.0  # so that attention is not flat
    return model


def supported_by(backend: str) -> list[str]:
    found = {name: make_config(position).position for name, position in POSITIONS.items()}
    able = {name: ENCODINGS[each["name"]].able_backends(each) for name, each in found.items()}
    return [name for name, backends in able.items() if backend in backends]


FLEX, FLASH = supported_by("flex_attention"), supported_by("flash_attention_2")


def make_model(position="tape", *, kernel="sdpa", seed=0, dtype=torch.float32, **changes):
    torch.manual_seed(seed)
    config = make_config(position, attn_implementation=kernel, **changes)
    return perturb(TapeForCausalLM(config)).to(dtype).eval()


# Its weights are no softmax: it has neither sinks nor Scalable-Softmax.
WITHOUT_SOFTMAX = ("stick_breaking",)


def all_options(position) -> dict:
    """Every option of the decoder at once, as far as the encoding has it."""
    options = {"sliding_window": 3, "qk_norm": True, "exclusive_attention": True}
    options |= {"gated_attention": True}
    if position not in WITHOUT_SOFTMAX:
        options |= {"attention_sink": True, "scalable_softmax": True}
    options |= {"num_key_value_heads": 2 if position in GROUPED else 4}
    options |= {"num_hidden_layers": 2, "num_recurrences": 2}
    if position in COUNTED:
        options["query_temperature"] = {"scale": 0.5, "length": 3}
    return options


def random_tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


CACHES = ["growing", "dynamic", "of_layers", "static"]
CACHE_EDITS = {
    "crop": lambda cache: cache.crop(-2),
    "reorder": lambda cache: cache.reorder_cache(torch.tensor([1, 0])),
    "select": lambda cache: cache.batch_select_indices(torch.tensor([1])),
    "repeat": lambda cache: cache.batch_repeat_interleave(2),
}


def make_cache(model, kind: str, slots: int = 20):
    if kind == "static":
        return StaticCache(config=model.config, max_cache_len=slots)
    config = model.config if kind == "of_layers" else None
    return None if kind == "growing" else DynamicCache(config=config)


def in_pieces(model, tokens, sizes, cache=None, mask=None, **inputs):
    """Logits of tokens given in pieces to a cache, with the attention mask of all of them (in two
    dimensions or four), and other inputs that have a column per token."""
    found, start = [], 0
    for part in tokens.split(sizes, dim=1):
        new = slice(start, start + part.shape[1])
        given = {name: x[:, new] for name, x in inputs.items()}
        if mask is not None:
            seen = mask[:, : new.stop] if mask.ndim == 2 else mask[:, :, new, : new.stop]
            given["attention_mask"] = seen
        called = model(part, past_key_values=cache, use_cache=True, **given)
        cache, start = called.past_key_values, new.stop
        found.append(called.logits)
    return torch.cat(found, dim=1)


def left_padded(length: int = 15):
    """Tokens of three rows and their mask: without padding, with some and with much."""
    mask = torch.ones(3, length, dtype=torch.long)
    mask[1, :4] = 0
    mask[2, :9] = 0
    return random_tokens(3, length), mask


def refuses(message, call, *given, **named):
    """A call raises a ValueError that says this."""
    with pytest.raises(ValueError, match=message):
        call(*given, **named)


def gradients(model, tokens, **inputs):
    model.zero_grad()
    model(tokens, **{"labels": tokens} | inputs).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@cached
def _composed(*overrides):
    return command.composed(list(overrides), "train")


def composed(*overrides):
    """The configuration of train.py; to compose it takes 100 times as long as to copy it."""
    return deepcopy(_composed(*overrides))


def pytest_report_header():
    """The size of the project, which one person should be able to read."""
    rooms = [ROOT / name for name in ("tape", "arithmetic", "scrolls")]
    product = [*ROOT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    for name, files in {"product": product, "tests": [*ROOT.glob("tests/*.py")]}.items():
        lines = sum(len(path.read_bytes().splitlines()) for path in files)
        yield f"{name}: {lines:,} lines of Python in {len(files)} files"


def pytest_collection_finish():
    """Keeps imported modules out of garbage collections, of which every training run has one."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def coarse_pictures():
    from matplotlib.figure import Figure

    savefig = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda *given, **how: savefig(*given, **how | {"dpi": 20}))
        patch.setattr(Figure, "tight_layout", lambda self: None)
        yield


@pytest.fixture
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(autouse=True)
def logging_stays():
    with unchanged_logging():
        yield


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made but not drawn: their files are empty."""

    def savefig(self, file, **settings):
        if isinstance(file, str | os.PathLike):
            Path(file).touch()

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", savefig)


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "corpus.jsonl"
    rows = [f"line {n} of a text: " + f"{n % 7} sheep and {n % 5} goats. " * 12 for n in range(400)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def run_quick(text, cache):
    """Runs the quick experiment on the small corpus with further overrides; returns its folder."""

    settings = ["experiment=quick", "data=text", f"data.files={text}", f"cache_dir={cache}"]
    settings += ["vocab_size=300", "trainer.max_steps=8", "trainer.save_steps=4"]
    settings += ["trainer.eval_steps=4", "trainer.logging_steps=2"]

    def run_quick(*overrides, folder):
        cfg = composed(*settings, *overrides)
        cfg.output_dir = str(folder)
        train.run(cfg)
        return folder

    return run_quick


@pytest.fixture(scope="session")
def quick_run(run_quick, tmp_path_factory):
    """The folder of a finished run, to be read or copied."""
    return run_quick(folder=tmp_path_factory.mktemp("quick") / "run")


@pytest.fixture
def start(run_quick, tmp_path):
    return partial(run_quick, folder=tmp_path / "run")


@pytest.fixture
def finished(quick_run, tmp_path):
    """A copy of a finished run, where `start` has its folder."""
    return shutil.copytree(quick_run, tmp_path / "run")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.bin"
    np.random.default_rng(0).integers(0, VOCABULARY, 400).astype("<u2").tofile(path)
    return path


@pytest.fixture
def analyse(tmp_path, text_file, capsys):
    """Runs a command; returns what it prints and its folder of results."""

    def analyse(command, models, *given):
        folders, out = map(str, models), tmp_path / "out"
        tape(command, "--model", *folders, "--data", text_file, "--out", out, *given)
        return capsys.readouterr().out, out

    return analyse
