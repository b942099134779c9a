"""Methods of context extension side by side: the numbers, the rows, the picture, and refusals."""

import math
import shutil
from itertools import product

import pytest
from commands import tape
from conftest import composed, refuses
from results import add_passkeys, add_perplexity, change
from results import make_run as make

from tape.results.compare import read
from tape.results.figures import curves
from tape.results.typesetting import markdown
from tape.tasks.passkey.sequences import Passkeys

BASE = 4 * "0123456789abcdef"
AT = {8: 30.0, 32: 35.0}


def make_run(folder, method, seed=0, perplexities=None, right=None, **changes):
    """A run with these perplexities, and so many right of 10, by length; a base without a method.
    `changes` are of its settings, and `asked` of its perplexities."""
    asked, weights = changes.pop("asked", {}), changes.pop("weights", None)
    if method is not None:
        adapted = {"length": 32, "base_model": "output/base", "base_weights": BASE}
        changes = adapted | {"peft__name": method, "peft__lora": {"rank": 8}} | changes
    make(folder, "tape" if method == "adape" else "rope", seed, **changes)
    weights = weights or (BASE if method is None else "f" * 64)
    if perplexities:
        losses = {length: math.log(value) for length, value in perplexities.items()}
        add_perplexity(folder / "extend", losses, weights, **asked)
    if right:
        counts = {length: [min(5, n), max(0, n - 5)] for length, n in right.items()}
        add_passkeys(folder / "extend", 8 if method else 4, counts, weights)
    return folder


@pytest.fixture
def runs(tmp_path):
    found = [
        make_run(tmp_path / "base", None, 0, {8: 40.0, 32: 90.0}),
        make_run(tmp_path / "asked", None, 0, right={4: 10, 8: 0}),
    ]
    for seed, at in enumerate(({8: 20.0, 32: 30.0}, {8: 22.0, 32: 40.0}, {8: 24.0, 32: 50.0})):
        found.append(make_run(tmp_path / f"text_lora_{seed}", "lora", seed, at))
    found.append(make_run(tmp_path / "text_adape_0", "adape", 0, AT, trainer__learning_rate=0.2))
    for seed, right in enumerate((2, 4, 9)):
        keys = {4: 10, 8: right}
        found.append(make_run(tmp_path / f"keys_lora_{seed}", "lora", seed, right=keys))
    return found


def test_learning_rates_are_those_of_each_evaluation(runs, tmp_path):
    rate = {"trainer__learning_rate": 0.4}
    runs.append(make_run(tmp_path / "keys_adape_0", "adape", 0, right={4: 1, 8: 0}, **rate))
    assert "adape 0.2 (perplexity) 0.4 (passkey)" in markdown(read(runs))


def test_the_picture_names_all_and_draws_what_was_measured(runs):
    figure = curves(read(runs))
    drawn = [{line.get_label(): line for line in axes.lines} for axes in figure.axes]
    lengths, positions, keys = drawn
    here = ["not extended", "base trained up to here", "extended up to here"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {*lengths} == {*positions} == {*legend} == {*here, "adape", "lora"}
    assert {*keys} == {*here, "lora"}
    assert lengths["lora"].get_ydata().tolist() == pytest.approx([22, 40])
    assert positions["adape"].get_ydata().tolist() == pytest.approx([math.log(35)] * 15)
    assert max(positions["adape"].get_xdata()) > 28  # of the windows of 32
    assert keys["lora"].get_ydata().tolist() == pytest.approx([1, 0.5])
    marks = [[axes[label].get_xdata()[0] for label in here[1:]] for axes in drawn]
    assert marks == [[8, 32], [8, 32], [4, 8]]
    assert len(figure.axes[0].collections) == 1  # the band of lora, the others have one seed
    only_keys = read([run for run in runs if run.name.startswith("keys")])
    assert len(curves(only_keys).axes) == 1


def test_what_was_trained_or_measured_otherwise_is_refused(runs, tmp_path):
    def refused(message, perplexities=AT, **changes):
        shutil.rmtree(tmp_path / "other", ignore_errors=True)
        other = make_run(tmp_path / "other", "ft", 0, perplexities, **changes)
        refuses(f"/.* and .*other were {message}", read, [*runs, other], "extend")

    refused("trained with different settings: length: 32 -> 16;", length=16)
    refused(f"trained .* base_weights: {BASE} -> a;", base_weights="a")
    refused("evaluated with different settings: stride: 4 -> 5", asked={"stride": 5})
    refused("evaluated with different settings: data_hash: d -> e", asked={"data_hash": "e"})
    refused(r"evaluated .*: lengths: \[8, 32\] -> \[8\]", {8: 30.0})


def test_two_measurements_are_not_one(runs, tmp_path):
    two = make_run(tmp_path / "two", "ft", 0, AT)
    add_perplexity(two / "extend", {8: 1.0}, convention="disjoint")
    missing = read([*runs, two], "extend").missing[two]
    assert "does not hold one measurement of one model (convention)" in missing
    shutil.rmtree(two / "extend")
    assert "has none of perplexity.csv" in read([*runs, two], "extend").missing[two]


def test_a_method_with_other_settings_is_another_row(runs, tmp_path):
    runs.append(make_run(tmp_path / "wide", "lora", 0, AT, peft__lora={"rank": 16}))
    ranks = {"lora peft.lora.rank=8", "lora peft.lora.rank=16"}
    assert {*read(runs).labels} >= ranks
    xpos = {"position__name": "xpos", "position__centre": 4}
    other = make_run(tmp_path / "xpos", "lora", 0, AT, **xpos)
    found = {label for label in read([*runs, other]).labels if label.startswith("lora")}
    ranks = {label.replace("lora", "lora position=rope", 1) for label in ranks}
    assert found == {"lora", "lora position=xpos", *ranks}  # the first has pass keys alone
    shutil.copytree(tmp_path / "wide", tmp_path / "again")
    with pytest.raises(ValueError, match=r"wide and .*again are the same run, seed 0: give only"):
        read([*runs, tmp_path / "again"], "extend")


def test_the_base_is_the_one_that_was_adapted(runs, tmp_path):
    second = make_run(tmp_path / "second", None, 1, {8: 40.0, 32: 90.0}, weights="8" * 64)
    refuses(r"lora_0 was adapted from other weights than .*second", read, [*runs, second], "extend")
    for run in runs[2:6]:
        change(run, base_weights="9" * 64)
    with pytest.raises(SystemExit, match=r"text_lora_0 was adapted from other weights than .*base"):
        tape("compare", *runs, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_each_seed_may_have_a_base_of_its_own(tmp_path):
    """By hand: 12 and 14 of 20 have mean 65 %; Student's t for one degree of freedom is 12.706, and
    12.706 * 7.071 / sqrt(2) = 63.5."""
    runs = []
    for seed, method in product((0, 1), ("lora", "adape")):
        given = {"base_model": f"output/base_{seed}", "base_weights": str(seed) * 64}
        right, folder = {4: 10, 8: 2 + 2 * seed}, tmp_path / f"{method}_{seed}"
        runs.append(make_run(folder, method, seed, right=right, **given))
    refuses(f"base_weights: {'0' * 64} -> {'1' * 64}", read, runs, "extend")
    assert len(read(runs, "extend", across=["base_weights"]).labels) == 4
    within = {"name": "extend", "within": ["base_*"]}
    text = markdown(read(runs, **within))
    assert "| lora | 2 | 65.0 ± 63.5 | 4 |" in text and "| adape | 2 |" in text
    right = {4: 10, 8: 0}
    other = make_run(tmp_path / "ft_0", "ft", 0, right=right, base_weights="1" * 64)
    refuses(r"lora_0 and .*ft_0 were .* base_weights: 0+ -> 1+;", read, [*runs, other], **within)
    base = make_run(tmp_path / "other_1", None, 1, right=right)
    refuses(r"lora_1 was adapted from other weights than .*other_1", read, [*runs, base], **within)
    for seed in (0, 1):
        weights = str(seed) * 64
        runs.append(make_run(tmp_path / f"base_{seed}", None, seed, right=right, weights=weights))
    assert "| not extended | 2 |" in markdown(read(runs, **within))
    change(runs[-1], trainer={"seed": 1, "max_steps": 9})
    refuses(r"base_0 and .*base_1 were .* trainer\.max_steps: ", read, runs, **within)
    with pytest.raises(ValueError, match=r"base_0 and .*base_1 are both not extended"):
        read(runs, across=["trainer.*"], **within)


@pytest.mark.parametrize("method", ["longlora", "yarn", "adape"])
def test_the_demos_recipes_take_every_method(method):
    """Four times the length of their bases, and of one that longlora can make groups of."""
    base, text = composed("position=rope"), composed("experiment=extend", f"peft={method}")
    assert text.length == text.model.max_position_embeddings == 4 * base.length
    assert text.base_model == text.tokenizer == "output/rope_local"
    assert text.output_dir == f"output/extend/text_{method}_0" and text.data.name == base.data.name
    keys = composed("experiment=extend_passkey", f"peft={method}", "seed=1")
    assert keys.data.max_length == 4 * composed("experiment=passkey").data.max_length
    assert keys.length == Passkeys(max_length=keys.data.max_length).length
    positions = keys.model.max_position_embeddings
    assert positions >= keys.length and positions % 8 == 0
    assert keys.base_model == "output/passkey_rope_0"
    assert keys.output_dir == f"output/extend/passkey_{method}_1"
