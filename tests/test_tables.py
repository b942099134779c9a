"""Tables in the documents are those of the committed rows."""

import re
import shlex
from collections import defaultdict
from itertools import product

import pandas as pd
import pytest
from pages import RESULTS, ROOT, blocks, rows_of

from tape.analysis import stability, state, visualize
from tape.cli.leaderboard import leaderboard
from tape.cli.settings.groups import ABLATIONS
from tape.core.statistics import student
from tape.evaluation.tables import markdown_table, over_seeds
from tape.results import differences, load
from tape.results.compare import markdown
from tape.results.rows import read
from tape.tasks.synthetic.suite import suite

ACROSS = ["data.abacus_offset", "task.original_fault"]  # of earlier versions
MAIN = ["add_a*", "add_fault*", "add_fire*", "add_[nrt]*", "add_xpos*"]
VARIANTS = ["add_[rs]*", "add_adape*", "add_t*", "add_factor*", "add_xavier*"]
FULL = str(RESULTS / "ablations" / "ablation_full_10")
BASES = {"within": ["base_*", "tokenizer"]}
ONE_RATE = {"only": ["bigrams_[!fnr]*", "bigrams_fo*", "bigrams_r[ae]*"]}  # on bigrams
LIKE_MAIN = ["add_a[dl]*", "add_[cgklnprtw]*", "add_f[io]*", "add_s[eit]*", "add_xp*"]
TABLES = [("addition", "variants", {"only": VARIANTS}, "randpe")]
for name, chosen, baseline in (
    ("addition", {"across": ACROSS, "only": MAIN}, "tape"),
    ("addition_more addition", {"only": LIKE_MAIN}, "rope"),
    ("passkey", {}, None),
    ("extension", {}, "adape"),
    ("bases", BASES, "adape"),
    ("encodings", {}, "rope"),
    ("text", {}, "rope"),
    ("text_more", {}, None),
    ("bigrams", {}, "tape"),
    ("bigrams_more bigrams", ONE_RATE, "rope"),
    ("first", {}, "rope"),
    ("ladder_1", {}, "rope"),
    ("addition_ablations", {"across": ["model.num_recurrences"]}, None),
    ("checkpoints", {}, None),
    ("contextual", {"only": ["contextual_[rt]*"]}, "rope"),
    ("contextual_needle", {}, "rope"),
    ("interventions_addition", {}, "tape"),
    ("interventions_keys", BASES, "adape"),
):
    TABLES.append((name, "table", chosen, baseline))
TABLES.append(("contextual", "0.008", {"only": ["*_0.008_*"]}, "rope"))
for rate in ("0.016", "0.032"):
    TABLES.append(("contextual_text", rate, {"only": [f"*_{rate}_*"]}, "rope"))
for name, seeds in (("equivariance", "1[0-5]"), ("width", "1?")):
    rows = ABLATIONS.tables[name]
    TABLES.append(("ablations", name, {"only": [f"ablation_{row}_{seeds}" for row in rows]}, FULL))


@pytest.mark.parametrize(("results", "page", "chosen", "baseline"), TABLES)
def test_tables_are_those_of_the_results(results, page, chosen, baseline):
    folders = [RESULTS / name for name in results.split()]  # the first has the page
    found = read(folders, **chosen)
    assert not found.missing
    row = None if baseline is None else found.find(baseline)
    assert markdown(found, row) in (folders[0] / f"{page}.md").read_text()


def test_the_table_of_parts_is_that_of_the_results():
    names = ["tape", *(f"tape {x}=False" for x in ("magnitudes", "attention", "feed_forward"))]
    text = (ROOT / "docs" / "state.md").read_text()
    lines = re.findall(r"^\| .*(?:all of| alone| gain) .*\|$", text, re.MULTILINE)
    shown = [line.strip(" |").split(" | ")[1:] for line in lines]
    for place, (runs, length) in enumerate(product(("[rt]", "0.008_"), (64, 512))):
        rows = load([RESULTS / "contextual"], only=[f"contextual_{runs}*"])
        rows = rows[(rows["measure"] == "loss") & rows["first"].isna() & (rows["length"] == length)]
        found = differences(rows, "rope").loc[[*names, "rope_gain"]]
        for each, told in zip(found.itertuples(), (x[place] for x in shown), strict=True):
            digits = len(told.partition(".")[2].partition(" ")[0])
            assert told == f"{each.mean:+.{digits}f} ± {each.half_width:.{digits}f}"


CHANGES = {
    "no update": "initial",
    "one constant magnitude per head": "constant",
    "the state of another text": "other_text",
    "RoPE's phases, TAPE's magnitudes": "magnitudes",
    "TAPE's phases, RoPE's magnitude": "phases",
    "no update in attention": "without_attention",
}


@pytest.mark.parametrize(
    ("page", "columns"), [("state", {1: 256, 2: 512, 3: 1024}), ("findings", {1: 256})]
)
def test_losses_with_changed_states_are_those_of_the_rows(page, columns):
    rows = pd.read_csv(RESULTS / "state" / "state.csv").query("measure == 'loss'")
    losses = rows.pivot(index=["length", "model"], columns="change", values="value")
    costs = losses.sub(losses["none"], axis=0)
    section = (ROOT / "docs" / f"{page}.md").read_text().partition("changed states")[2]
    table = re.search(r"^\| (?:loss|change of).*\n(?:\|.*\n)+", section, re.MULTILINE)[0]
    shown = [line.strip(" |").split(" | ") for line in table.splitlines()[2:]]
    assert len(shown) >= 4
    for line, (place, length) in product(shown, columns.items()):
        if len(line) > place and (told := re.search(r"\S+ ± \S+", line[place])):
            cost = costs.loc[length, CHANGES[line[0]]]
            mean, half = cost.mean(), student(cost)
            digits = len(told[0].partition(".")[2].partition(" ")[0])
            assert told[0] == f"{mean:+.{digits}f} ± {half:.{digits}f}"


PARTS = {"text": ["text", "bigrams"], "context_extension": ["extension", "bases"]}
PARTS |= {"first_comparison": ["first"], "suite": ["tasks"], "retrieval": ["needle_long"]}
PARTS |= {"arithmetic": ["addition"], "english": ["ladder_1"]}


@pytest.mark.parametrize("page", PARTS)
def test_pages_show_parts_of_the_tables(page):
    """A table with the head of a whole one has only lines of that."""
    tables = [(RESULTS / name / "table.md").read_text().splitlines() for name in PARTS[page]]
    shown = re.findall(r"^(?:\|.*\n)+", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    parts = [part for part in map(str.splitlines, shown) if any(part[0] in x for x in tables)]
    assert len(parts) >= len(tables) and all(len(part) > 2 for part in parts)
    assert all(any({*part} <= {*table} for table in tables) for part in parts)


def test_rows_in_a_notebook_are_those_of_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    found = {}
    exec(compile(blocks(ROOT / "docs" / "pretraining.md", "python")[0], "page", "exec"), found)
    rows = found["accuracy"].query("length == 256")
    header, _, *lines = rows_of(markdown(read([RESULTS / "passkey"])).partition("\n\n")[0])
    shown = {line[0]: line[header.index("256 (2x), %")] for line in lines}
    means = found["table"](rows, by="row")
    assert {
        name: f"{100 * each['mean']:.1f} ± {100 * each['half_width']:.1f}"
        for name, each in means.iterrows()
    } == shown
    assert "detectable" in capsys.readouterr().out
    for name in ("lengths", "maps"):
        assert (tmp_path / "output" / f"{name}.png").stat().st_size > 1000


CONTRASTS = {"suite": "flip_flop:fox:rope counting:fox:rope add:nope:rope add:fire:rope"}
CONTRASTS["suite"] += " 'copy:tape sampler=subset:randpe' copy:tape:rope"
CONTRASTS["tasks"] = CONTRASTS["suite"]
CONTRASTS["needle_long"] = "needle:fire:rope needle:nope:rope needle:tape:rope needle:fire:tape"


@pytest.mark.parametrize("results", CONTRASTS)
def test_the_suite_is_that_of_the_results(results, tmp_path):
    text, missing = suite([RESULTS / results], tmp_path, shlex.split(CONTRASTS[results]))
    assert not missing and text in (RESULTS / results / "table.md").read_text()


ANALYSES = {"stability/stability": stability, "visualize/attention": visualize}
ANALYSES |= {f"state{of}/state": state for of in ("", "_bigrams", "_addition")}


@pytest.mark.parametrize(("results", "analysis"), ANALYSES.items())
def test_analyses_are_those_of_the_results(results, analysis):
    page = (RESULTS / results).with_name("table.md").read_text()
    assert analysis.markdown(pd.read_csv(RESULTS / f"{results}.csv")) in page


def test_the_faults_are_those_of_the_results():
    """Of a command that is gone."""
    rows = pd.read_csv(RESULTS / "faults" / "faults.csv")
    page = (RESULTS / "faults" / "table.md").read_text()
    right = rows[rows["fault"] == "none"].set_index(["model", "length"])["nll"].rename("right")
    rows["more"] = rows["nll"] - rows.join(right, on=["model", "length"])["right"]
    for (row, fault), found in rows.groupby(["row", "fault"]):
        for column, digits in (("perplexity", 2), ("more", 4)):
            cells = [over_seeds(x.tolist(), digits) for _, x in found.groupby("length")[column]]
            line = f"| {row} | {fault} | 3 | {' | '.join(cells)} |"
            assert line in page or (column, fault) == ("more", "none"), line


FRONT_ROWS = ("t5", "fire", "fox", "alibi", "rope", "tape")


def test_the_leaderboard_is_that_of_the_rows(tmp_path, undrawn):
    """Page and table, which `tape leaderboard` makes, and the part of them on the front page."""
    assert not leaderboard([], tmp_path)[1]
    for name in ("leaderboard.md", "leaderboard.csv"):
        assert (ROOT / "docs" / name).read_text() == (tmp_path / name).read_text(), name
    plain = re.sub(r"\*\*|</?u>|\]\([^)]*\)|\[", "", (tmp_path / "leaderboard.md").read_text())
    cells = defaultdict(dict)
    for heads, _, *rows in (rows_of(part) for part in plain.split("\n## ")[1:4]):
        for row in rows:
            cells[row[0]] |= zip(heads, row, strict=True)
    shown = ["text 4x, nats", "addition +1 digit, %", "step time, H100"]
    _, _, *rows = rows_of((ROOT / "README.md").read_text().partition("## ")[0])
    assert [row[0] for row in rows] == [f"`{name}`" for name in FRONT_ROWS]
    for name, (_, *values) in zip(FRONT_ROWS, rows, strict=True):
        assert values == [cells[name][head].split()[0] for head in shown]  # without the range


NAMES = {"rope": "RoPE", "nope": "NoPE", "alibi": "ALiBi", "fire": "FIRE"}
SEARCHED = {"length": "letters", "max_steps": "steps", "layers": "layers", "batch": "batch"}
SEARCHED |= {"matrix_rate": "rate of matrices", "rate": "of the rest"}
SEARCHED |= {"initializer_range": "initial weights", "other": "other"}


def test_the_search_for_the_recipe_of_the_suite():
    rows = pd.read_csv(RESULTS / "suite_search" / "results.csv").fillna({"other": ""})
    rows = rows[rows["task"] == "copy"].assign(percent=lambda x: 100 * x["trained"])
    assert not rows.duplicated([*SEARCHED, "encoding"]).any()
    cells = rows.pivot(columns="encoding", index=[*SEARCHED], values="percent")
    lines = [[*SEARCHED.values(), *NAMES.values()]]
    for settings, found in cells[[*NAMES]].iterrows():
        lines.append([*settings, *("-" if pd.isna(x) else f"{x:.1f}" for x in found)])
    assert markdown_table(lines) in (RESULTS / "suite_search" / "table.md").read_text()
