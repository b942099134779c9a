"""RoPE at trained distances: its maps, RoPE as a special case, checkpoints, settings, commands."""

import math
from argparse import Namespace

import pandas as pd
import pytest
import torch
from cases import Case, check
from commands import ROOT
from conftest import fields_of_llama, make_config, make_model, perturb, random_tokens
from reference_parts import trained_distance
from test_contract import check_against_loops, loops_of
from transformers import LlamaConfig, LlamaForCausalLM

from tape import TapeConfig, TapeForCausalLM
from tape.cli import evaluate as parsers
from tape.encodings.pieces import METHODS
from tape.evaluation import curves, perplexity
from tape.evaluation.accuracy import effective_length
from tape.evaluation.extension import extended
from tape.evaluation.tables import median_length, read_table

T = 40
MAPS = [
    {"method": "self_extend", "window": 5, "group": 3},
    {"method": "self_extend", "window": 3, "group": 7},
    {"method": "rerope", "window": 6},
    {"method": "leaky_rerope", "window": 5, "group": 3},
    {"method": "dca", "window": 3, "chunk": 7},
    {"method": "dca", "window": 5, "chunk": 4},
    {"method": "string", "window": 2, "offset": 6},
    {"method": "string", "window": 1, "offset": 16},
]


def by(method, **given):
    return {"name": "extended", "method": method, **given}


def model_of(given, rope="rope", **changes):
    """A model whose frequencies are those of another encoding."""
    fields = make_config(rope, **changes).to_dict() | {"position": by(**given)}
    torch.manual_seed(0)
    return perturb(TapeForCausalLM(TapeConfig(**fields))).double().eval()


@pytest.mark.parametrize("n", range(len(MAPS)))
def test_equals_the_loops_on_long_texts(n):
    """With chunks and groups that end within the text, schedules, and grouped queries."""
    rope = ("rope", "yarn", "rope_llama3", "rope_partial")[n % 4]
    model = model_of(MAPS[n], rope, num_key_value_heads=2)
    check_against_loops(model, loops_of(model, 19), {"atol": 1e-9, "rtol": 1e-9})


@pytest.mark.parametrize("given", MAPS[::2])
def test_long_texts_in_pieces_and_padded_are_as_alone(given):
    """Past several chunks and groups, which the contract's texts are too short for."""
    rows = ("a" * T, "." * 9 + "a" * (T - 9))
    for calls, kind in (((), None), ((1,) * T, "of_layers"), ((17, 1, 9, 13), "static")):
        check(Case(by(**given), rows, calls=calls, cache=kind))


@torch.no_grad()
@pytest.mark.parametrize("method", METHODS)
def test_a_llama_and_a_model_of_ours_are_extended_when_they_are_loaded(method, tmp_path):
    config = make_config({"name": "rope", "theta": 500.0}, num_key_value_heads=2)
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**fields_of_llama(config, "rope_parameters"))).eval()
    llama.save_pretrained(tmp_path / "llama")
    TapeForCausalLM.from_pretrained(tmp_path / "llama").save_pretrained(tmp_path / "ours")
    tokens, near = random_tokens(2, T), 4
    found = []
    for folder in (tmp_path / "llama", tmp_path / "ours"):
        model = TapeForCausalLM.from_pretrained(folder, position=by(method)).eval()
        assert model.config.rope_parameters["rope_theta"] == 500.0
        assert model.config.position["window"] > 0
        found.append(model(tokens).logits)
    assert torch.equal(*found)
    expected = llama(tokens).logits
    torch.testing.assert_close(found[0][:, :near], expected[:, :near], atol=1e-6, rtol=0)
    assert (found[0] - expected).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("length", "given", "expected"),
    [
        # Of Llama 2 Self-Extend's authors give 5 for 16,384 tokens, where the distances of the last
        # 4 of them would reach 4,096.
        (4096, {"method": "self_extend"}, {"window": 1024, "group": 6}),
        (4096, {"method": "self_extend", "factor": 16380 / 4096}, {"window": 1024, "group": 5}),
        (4096, {"method": "self_extend", "window": 512, "group": 8}, {"window": 512, "group": 8}),
        (4096, {"method": "rerope"}, {"window": 1024}),
        (4096, {"method": "rerope", "factor": 100}, {"window": 1024}),
        (4096, {"method": "leaky_rerope"}, {"window": 1024, "group": 5}),
        (4096, {"method": "dca"}, {"window": 1024, "chunk": 3072}),
        (131_072, {"method": "string"}, {"window": 128, "offset": 43_691}),
        (64, {"method": "string", "factor": 1.5}, {"window": 4, "offset": 36}),
    ],
)
def test_defaults_follow_from_the_trained_length(length, given, expected):
    config = make_config(by(**given), max_position_embeddings=length)
    always = {"name": "extended", "method": given["method"], "sampler": {"name": "index"}}
    assert config.position == always | expected
    # Distances stay below the trained length, of the last query in a text of the length to reach.
    factor = given.get("factor", 1 if given["method"] == "string" else 4)
    last = (8 * (3584 + 64) if "group" in given else math.floor(factor * length)) - 1
    found = [trained_distance(config.position, last, j) for j in range(last + 1)]
    assert min(found) >= 0 and max(found) < length


REFUSED = {
    "unknown method of position extended 'rerop'; did you mean 'rerope'": {"method": "rerop"},
    "self_extend: window=16 must be an integer in 1..15": {"window": 16},
    "self_extend: group=0 must be an integer in": {"group": 0},
    "self_extend takes no chunk; it takes window and group": {"chunk": 4},
    "give factor or group, which factor determines": {"factor": 4, "group": 3},
    "factor=0.5 must be a number in 1..1,000,000": {"factor": 0.5},
    "extended: window=True must be an integer": {"method": "rerope", "window": True},
    "rerope takes no group; it takes window": {"method": "rerope", "group": 3},
    "dca: chunk=16 must be an integer in 1..15": {"method": "dca", "chunk": 16},
    "dca: window=9 must be an integer in 1..8": {"method": "dca", "chunk": 8, "window": 9},
    "string: offset=2 must be an integer in 3..16": {"method": "string", "offset": 2, "window": 3},
    "window=1 reaches 31 tokens, fewer than factor=4 times": {"method": "string", "factor": 4},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_cannot_be_are_refused(message):
    with pytest.raises(ValueError) as refused:
        make_config({"name": "extended", **REFUSED[message]})
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "column"), [("extended", 1), ("keys", 3), ("needle", 5)])
def test_the_documented_tables_are_those_of_the_rows(name, column):
    folder = ROOT / "docs" / "results" / "extended"
    rows, table = pd.read_csv(folder / f"{name}.csv"), (folder / "table.md").read_text()
    page = (ROOT / "docs" / "context_extension.md").read_text().splitlines()
    on_page = {line.split(" | ")[0]: line[2:-2].split(" | ") for line in page}
    for model, found in rows.groupby("model"):
        if name == "extended":
            cells = [f"{x:.2f}" for x in found["perplexity"]]
        else:
            shares = found.set_index("length")["accuracy"][[128, 256, 512, 1024]]
            of = found.rename(columns={"accuracy": "value"}).assign(measure="accuracy")
            longest = median_length([effective_length(of)], 1024)
            cells = [*(f"{100 * x:.1f}" for x in shares), longest]
        assert f"| {' | '.join([model, *cells])} |\n" in table
        label = model.split()[1] if " " in model else f"peft={model.split('_')[1]}"
        label = "| base" if label in ("peft=64", "peft=rope") else f"| `{label}`"
        assert on_page[label][column : column + 2] == cells[2:4]  # the two longest lengths
    assert rows["model"].nunique() == 1 + len(parsers.EXTENSIONS) + 3 * (name != "needle")


# ---- commands


def measured(folder, data, *given):
    """Perplexities by length, from the row that a call adds."""
    words = ["--model", folder, "--data", data, "--lengths", "16", "32", "--stride", "8", *given]
    arguments = parsers.perplexity([*map(str, words)])
    perplexity.run(arguments)
    rows = read_table(arguments.out, curves.COLUMNS, ["perplexity"])[-2:]
    name = f"{rows['model'].iloc[0]} {rows['extend'].iloc[0]}".strip()
    return name, rows["perplexity"].tolist(), arguments.out.name


@pytest.mark.usefixtures("undrawn")
def test_perplexity_of_an_extended_model_is_that_of_the_model_so_loaded(tmp_path, text_file):
    """Its results go beside its perplexity.csv."""
    make_model("rope").save_pretrained(tmp_path / "ours")
    (tmp_path / "ours" / "run.json").write_text("{}")
    found = {(): measured(tmp_path / "ours", text_file)[1]}
    for method in parsers.EXTENSIONS:
        name, found[method], table = measured(tmp_path / "ours", text_file, "--extend", method)
        assert (name, table) == (f"ours {method}", "extended.csv")
        position = extended(Namespace(extend=method, factor=None), tmp_path / "ours")
        model = TapeForCausalLM.from_pretrained(tmp_path / "ours", position=position)
        model.save_pretrained(folder := tmp_path / f"saved_{method}")
        (folder / "run.json").write_text("{}")
        assert measured(folder, text_file)[1:] == (found[method], "perplexity.csv")
    assert len({tuple(values) for values in found.values()}) == len(found)
    given = ("--extend", "self_extend", "--factor", "2")
    name, values, _ = measured(tmp_path / "ours", text_file, *given)
    assert name == "ours self_extend 2" and values != found["self_extend"]


SUBSET = {"name": "rope", "sampler": "subset"}
EXTENSIONS_REFUSED = {
    "--factor 4 without --extend: give a method": ("rope", "--factor 4"),
    "extended on a model with position 'tape', whose scores": ("tape", "--extend dca"),
    "extended on a model with position 'fire', whose scores": ("fire", "--extend self_extend"),
    "--extend ntk on a model with position 'yarn' and rope_type='yarn'": ("yarn", "--extend ntk"),
    "yarn on a model with position 'rope' and rope_type='l": ("rope_linear", "--extend yarn"),
    "--extend linear on a model with position 'fire' and rope_type=": ("fire", "--extend linear"),
    "reaches 31 tokens, fewer than factor=4.0 times 16": ("rope", "--extend string --factor 4"),
    "extended on a model with sampler 'subset', which": (SUBSET, "--extend dca"),
    "factor=0.0 must be a number in 1..1,000,000": ("rope", "--extend dca --factor 0"),
    "factor=0.5 must be a number >= 1": ("rope", "--extend ntk --factor 0.5"),
}


@pytest.mark.parametrize("message", EXTENSIONS_REFUSED)
def test_extensions_that_are_not_defined_are_refused(message, tmp_path, text_file):
    position, given = EXTENSIONS_REFUSED[message]
    make_model(position).save_pretrained(tmp_path / "model")
    before = set(tmp_path.rglob("*"))
    words = ["--model", tmp_path / "model", "--data", text_file, "--out", tmp_path / "x.csv"]
    with pytest.raises(ValueError) as refused:
        perplexity.run(parsers.perplexity([*map(str, words), *given.split()]))
    assert message in str(refused.value) and set(tmp_path.rglob("*")) == before
