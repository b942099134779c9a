"""Encodings over seeds in one table, and methods of context extension: the numbers, the statistics,
the rows, the pictures, and refusals."""

import json
import math
import shutil
from itertools import product

import numpy as np
import pandas as pd
import pytest
from commands import tape
from conftest import composed, refuses
from results import add_metrics, add_passkeys, add_perplexity, change
from results import make_run as make

from tape import TapeConfig
from tape.cli.settings.groups import ABLATIONS
from tape.core.files import write_text
from tape.core.statistics import differences
from tape.evaluation.curves import ABOUT, binned, context_gain, read_evaluation, write
from tape.evaluation.windows import ALIKE, CONVENTIONS, strides_of, windows_of
from tape.results.compare import compare, markdown, read
from tape.results.figures import curves
from tape.tasks.passkey.sequences import Passkeys


def make_text(folder, position, seed, losses, **settings):
    make(folder, position, seed, **settings)
    add_perplexity(folder / "compare", dict(zip((8, 16, 32), losses, strict=True)), windows=100)
    add_metrics(folder, losses[0] + 0.5)
    return folder


LOSSES = {
    "rope": [(1.0, 3.0, 4.0), (1.1, 3.2, 4.5), (1.4, 3.1, 4.1)],
    "tape": [(0.9, 1.0, 1.1), (1.05, 1.1, 1.3), (1.2, 1.2, 1.1)],
}


EACH = [(name, n, x) for name, seeds in LOSSES.items() for n, x in enumerate(seeds)]


@pytest.fixture
def seeds(tmp_path):
    return [make_text(tmp_path / f"e_{name}_{n}", name, n, losses) for name, n, losses in EACH]


def test_differences_are_those_of_the_statistics(seeds, tmp_path):
    values = [(name, seed, losses[2], 1) for name, seed, losses in EACH]
    rows = pd.DataFrame(values, columns=["row", "seed", "value", "n"])
    found = differences(rows, "rope").loc["tape"]
    assert (
        f"| tape | loss, 32 | {found['mean']:+.4f} ± {found.half_width:.4f} "
        f"| 3 | {found.p:.2g} | 0.25 | {found.detectable:.2g} |"
    ) in markdown(read(seeds, "compare"), "rope")
    assert "It has -" not in markdown(read(seeds, "compare"), "rope")
    alike = [
        make_text(tmp_path / f"e_nope_{n}", "nope", n, losses)
        for n, losses in enumerate(LOSSES["rope"])
    ]
    text = markdown(read([*seeds, *alike], "compare"), "rope")
    assert "| nope | loss, 32 | +0.0000 ± 0.0000 | 3 | 1 | 1 | - |" in text
    assert "It has - where all differences are equal." in text
    pairs = markdown(read([seeds[0], seeds[2], seeds[3], seeds[5]], "compare"), "rope")
    assert f"| loss, 32 | {(1.1 - 4.0 + 1.1 - 4.1) / 2:+.4f} ±" in pairs
    text = markdown(read([seeds[0], seeds[3]], "compare"), "rope")
    assert "Δ" not in text and "two seeds in common and finite values" in text


def test_one_trained_length_is_marked(seeds, tmp_path):
    longer = make_text(tmp_path / "longer", "nope", 0, LOSSES["rope"][0], length=16)
    for runs, marked in ((seeds, True), ([*seeds, longer], False)):
        (legend,) = curves(read(runs, "compare", across=["length"])).legends
        assert ("trained up to here" in [x.get_text() for x in legend.get_texts()]) == marked


def test_the_table_and_the_rows(seeds, tmp_path):
    """The tables of docs/ show how they are written."""
    out = tmp_path / "out"
    text, found = compare(seeds, out, "compare", "rope")
    assert not found.missing and (out / "table.md").read_text() == text + "\n"
    assert "No context gain" in text  # the trained length of 8 tokens has none
    counts = "700 tokens at 8, 1,500 tokens at 16, 3,100 tokens at 32 of d."
    assert f"Scored (convention paper, stride 4): {counts}\nWindows of other lengths" in text
    assert "Fewer than 4,096 tokens" in text
    assert curves(found).axes[1].get_title() == "paper, stride 4: 700 to 3,100 tokens, not the same"
    assert sum(line.startswith("|") for line in text.splitlines()) == 4 + 4 + 4  # three tables
    rows = pd.read_csv(out / "results.csv")
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    shown = ["encoding", "seed", "length", "n", "unit", "value"]
    expected = ["tape", 0, 8, 700, "nats", pytest.approx(0.9)]
    assert len(whole) == 6 * 3 and [*whole[shown].iloc[0]] == expected
    measures = {"loss", "training loss", "validation loss", "speed", "peak memory"}
    assert {*rows["measure"]} == measures and (out / "curves.png").stat().st_size > 0
    assert "Δ" not in compare(seeds, out, "compare")[0]


def test_a_baseline_is_a_row_or_one_of_its_runs(seeds, tmp_path, capsys):
    by_label = markdown(read(seeds), "rope")
    assert "| tape | loss, 8 | -" in by_label
    tape("compare", *seeds, "--baseline", seeds[1], "--out", tmp_path / "out")
    assert by_label in capsys.readouterr().out


def test_a_perplexity_beyond_all_numbers_is_infinite(tmp_path):
    seeds = [make_text(tmp_path / f"{n}", "rope", n, (1.0, 2.0, 800.0 + n)) for n in range(2)]
    assert "| inf" in compare(seeds, tmp_path / "out")[0]


def test_every_row_of_the_papers_ablations_composes():
    rows, both = {}, [*product([True, False], repeat=2)]
    for table, names in ABLATIONS.tables.items():
        rows[table] = [composed(f"ablation={x}").position for x in names]
    full = composed().position
    assert full.name == "tape" and all(full in each for each in rows.values())
    # The seven rows of Table 6.
    assert sorted((x.attention, x.feed_forward) for x in rows["architecture"]) == sorted(both)
    assert sorted((x.equivariant, x.tensorial) for x in rows["equivariance"]) == sorted(both)
    assert [x.width for x in rows["width"]] == ["1H", "2H", None, "8H", "16H"]
    wide = {"hidden_size": 96, "num_attention_heads": 12, "position": {**rows["width"][3]}}
    assert TapeConfig(**wide).position["width"] == 96


def test_the_context_gain_and_ngram_models_of_the_report(seeds, tmp_path):
    for n, run in enumerate(seeds):
        change(run, length=32)
        models = {"models": [{"model": "bigram", "perplexity": 4.0 + n}]}
        report = json.dumps({"scored_tokens": 9, "ngrams": models})
        write_text(run / "report" / "report.json", report)
    text, found = compare(seeds, tmp_path / "out", "compare")
    assert text.splitlines()[0].endswith("| context gain, nats |")
    assert "| 0.00 ± 0.00 |" in text  # every position has the same loss here
    assert "No context gain" not in text
    panel = curves(found).axes[2]
    line = next(line for line in panel.lines if line.get_label() == "bigram")
    assert line.get_ydata()[0] == pytest.approx(np.mean([math.log(4.0 + n) for n in range(6)]))
    again = curves(read([tmp_path / "out"])).axes[2]
    assert "bigram" in [line.get_label() for line in again.lines]


def test_a_continuation_is_left_out_until_it_ends(seeds, tmp_path):
    text, _ = compare(seeds, tmp_path / "out", "compare")
    for run in seeds:
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 7, "loss": 1, "tokens_per_second": 9, "peak_memory_gib": 9}\n')
            file.write('{"step": 8, "eval_loss": 0.1}\n')
    assert compare(seeds, tmp_path / "again", "compare")[0] == text
    for name in ("results.csv", "settings.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_an_extended_model_is_a_row_of_its_own(seeds, tmp_path):
    for run in seeds[:3]:
        (place := run / "compared").mkdir()
        add_perplexity(place, {8: 1.0, 16: 2.0, 32: 3.0}, windows=100, extend="linear 8")
    both = [run / name for run in seeds[:3] for name in ("compare", "compared")]
    compare(both, tmp_path / "out")
    for folders in (both, [tmp_path / "out"]):
        assert {*read(folders).labels} == {"rope", "rope extend=linear 8"}


def test_losses_by_position_are_those_of_the_measurement(seeds):
    """Those of weights that the run had before remain in their file."""
    place = seeds[0] / "compare"
    (place / "perplexity.csv").unlink()
    add_perplexity(place, {8: 2.0, 16: 2.0, 32: 2.0}, weights="e" * 16, windows=100)
    found = read_evaluation(place).rows
    assert {*found["value"]} == {2.0} and found["first"].notna().any()
    (place / "perplexity.csv").unlink()
    write(place / "perplexity.csv", dict.fromkeys(ABOUT, "other"), {8: [binned([1], [1.0])]})
    by_position = place / "perplexity_by_position.csv"
    kept = [x for x in by_position.read_text().splitlines(True) if not x.startswith("other")]
    by_position.write_text("".join(kept))
    refuses("not of the measurement in", read_evaluation, place)


@pytest.mark.parametrize("tokens", [900, 9_000])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_context_gain_needs_many_windows(tmp_path, convention, tokens):
    """Under `sliding`, only the first one scores the first tokens."""
    shown = tokens == 9_000 and convention not in ALIKE
    disjoint = convention == "disjoint"
    lengths = [32] if disjoint else [32, 64]
    strides = strides_of(convention, lengths, None if disjoint else 16)
    batches = {length: [] for length in lengths}
    for length, found in batches.items():
        for window in windows_of(convention, tokens, length, strides[length]):
            positions = np.array(window.positions)
            found.append(binned(positions, 1 / (1 + positions)))
    write(tmp_path / "perplexity.csv", dict.fromkeys(ABOUT, convention), batches)
    found = context_gain(read_evaluation(tmp_path).rows, 32)
    early, late = (np.mean(1 / (1 + np.arange(*part))) for part in ((2, 8), (16, 32)))
    assert [row["value"] for row in found] == [pytest.approx(early - late)] * shown


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
    add_perplexity(two, {8: 1.0})
    missing = read([*runs, two], "extend").missing[two]
    assert f"{two} has no evaluation extend; {two / 'perplexity.csv'} may hold" in missing
    assert missing.endswith(f"evaluate it with --out {two / 'compare' / 'perplexity.csv'}")


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
