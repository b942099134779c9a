"""What the documents show is true: code runs, files exist, names are known, tables are of rows."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import make_model, random_tokens

from arithmetic.problems import character_tokenizer
from tape import TapeForCausalLM
from tape.analysis import stability, state, visualize
from tape.commands.leaderboard import FRONT, leaderboard
from tape.evaluation.tables import markdown_table, over_seeds
from tape.positions import ALIASES, ENCODINGS
from tape.positions.base import Positions
from tape.results import differences, load
from tape.results.compare import markdown
from tape.results.rows import read
from tape.settings.groups import ABLATIONS
from tape.statistics import weighted_mean
from tape.tasks.synthetic.suite import suite

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("[a-z]*/README.md")])


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_readmes_python_runs(capsys):
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([1, 10, 4096])\n"


def test_the_notebook_runs(monkeypatch, capsys):
    monkeypatch.setitem(ENCODINGS, "near", None)  # and removed again
    names = {}
    for cell in json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("steps=300", "steps=10")
            exec(compile(code, "notebook.ipynb", "exec"), names)
    plt.close("all")
    assert names["near"].config.position["extent"] == 4
    assert capsys.readouterr().out.startswith("torch.Size([10240, 64])")


def test_the_sequences_of_the_analyses_are_whole_problems(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()
    (code,) = blocks(ROOT / "docs" / "inside.md", "python")
    exec(compile(code, "inside.md", "exec"), {})
    ids = np.fromfile("output/problems.ids", dtype="<u2").reshape(64, 34)
    texts = character_tokenizer().batch_decode(ids)
    assert all(re.fullmatch(r"\d{10}\+\d{10}=\d{11}<\S+>", text) for text in texts)


def test_the_readmes_encoding_works(monkeypatch, tmp_path):
    """Frequencies beyond the share do not rotate, also after reloading."""
    module, index = {}, torch.arange(7)[None]
    exec(compile(blocks(ROOT / "README.md", "python")[1], "prope.py", "exec"), module)
    monkeypatch.setitem(ENCODINGS, "prope", module["PRoPE"])
    make_model({"name": "prope", "share": 0.5}).save_pretrained(tmp_path)
    models = TapeForCausalLM.from_pretrained(tmp_path), make_model("rope")
    given = Positions(index, index), torch.float32
    state, expected = (model.model.position.state(*given).clone() for model in models)
    expected[..., expected.shape[-1] // 2 :] = torch.tensor([[1.0], [0.0]])  # cosine and sine
    assert torch.equal(state, expected)


def rows_of(table):
    return [re.split(r" *\| *", row)[1:-1] for row in table.splitlines() if row.startswith("|")]


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
    heads, _, *rows = rows_of((ROOT / "README.md").read_text().partition("## ")[0])
    assert len(heads) == 6 and len(rows) == 7
    for title in FRONT:  # of the picture's panels
        assert any(head.startswith(title) for head in heads), title
    for row in rows:
        assert row[1:] == [cells[row[0]][head] for head in heads[1:]]


def test_the_guides_encoding_is_the_packages():
    guide, package = ROOT / "CONTRIBUTING.md", ROOT / "tape" / "positions"
    *code, loop = blocks(guide, "python")
    files = [*[package / "fox.py"] * len(code), ROOT / "tests/references.py"]
    for block, file in zip((*code, loop), files, strict=True):
        assert block in file.read_text(), file
    assert blocks(guide, "yaml") == [(ROOT / "config" / "position" / "fox.yaml").read_text()]
    layer = "".join(blocks(ROOT / "docs" / "code.md", "python")[0].split())
    assert layer in "".join((ROOT / "tape" / "model" / "layer.py").read_text().split())


def test_every_room_has_its_line():
    text = (ROOT / "docs" / "code.md").read_text()
    rooms = {path.parent for path in (ROOT / "tape").glob("*/*.py")}
    shown = {*re.findall(r"^tape/(\w+)/ +\S", text, re.MULTILINE)}
    assert rooms and {room.name for room in rooms} == shown
    for encoding in ENCODINGS:
        assert encoding == "tape_yarn" or f"| `position={encoding}` |" in text


def called_in_a_step(position):
    """The numbers of own functions that a training step calls, and of their files."""
    model, tokens, calls = make_model(position).train(), random_tokens(2, 16), set()

    def note(frame, event, _):
        path, code = Path(frame.f_code.co_filename), frame.f_code
        if event == "call" and path.is_relative_to(ROOT / "tape") and code.co_name[0] != "<":
            calls.add((path, code.co_qualname))

    sys.setprofile(note)
    try:
        model(tokens, labels=tokens, skip_logits=True).loss.backward()
    finally:
        sys.setprofile(None)
    return len(calls), len({path for path, _ in calls})


def test_the_trace_of_a_step_is_that_of_the_page():
    text = " ".join((ROOT / "docs" / "code.md").read_text().split())
    rope, tape = map(called_in_a_step, ("rope", "tape"))
    assert f"calls {rope[0]} functions in {rope[1]} files with RoPE" in text
    assert f" with RoPE, {tape[0]} in {tape[1]} with TAPE." in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_site_builds_without_dead_links(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "site.css" in (tmp_path / "efficiency" / "index.html").read_text()


def test_the_way_to_the_mathematics_is_short():
    """The files that docs/code.md lists, up to the definition of TAPE."""
    text = (ROOT / "docs" / "code.md").read_text()
    files = re.findall(r"^\d\. \[[^]]+\]\(\.\./([^)]+)\)", text, re.MULTILINE)
    way = files[: files.index("tape/positions/tape.py") + 1]
    assert sum(len((ROOT / file).read_text().splitlines()) for file in way) <= 1300


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
    assert len((ROOT / "docs" / "findings.md").read_text().split()) <= 1200
    other = {"predictions.md", "CHANGELOG.md", "leaderboard.md"}  # logs and what a command writes
    pages = [page for page in PAGES if page.name not in other]
    assert sum(len(page.read_text().split()) for page in pages) <= 30_000


def test_every_encoding_is_documented():
    for page in ("README.md", "docs/encodings.md"):
        for name in (*ENCODINGS, *ALIASES):
            assert f"`{name}`" in (ROOT / page).read_text(), (page, name)
    table = (ROOT / "docs" / "encodings.md").read_text().partition("### Pictures")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(ENCODINGS)


def test_scripts_are_strict_and_say_what_they_do():
    for script in (ROOT / "script").rglob("*.sh"):
        lines = script.read_text().splitlines()
        if lines[0].startswith("# Sourced by "):
            continue  # by scripts that are strict
        assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# "), script
        assert "set -euo pipefail" in lines, script


ACROSS = ["data.abacus_offset", "task.original_fault"]  # of earlier versions
MAIN = ["add_a*", "add_fault*", "add_fire*", "add_[nrt]*", "add_xpos*"]
VARIANTS = ["add_[rs]*", "add_adape*", "add_t*", "add_factor*", "add_xavier*"]
FULL = str(RESULTS / "ablations" / "ablation_full_10")
BASES = {"within": ["base_*", "tokenizer"]}
ONE_RATE = {"only": ["bigrams_[!fnr]*", "bigrams_fo*", "bigrams_r[ae]*"]}  # on bigrams
TABLES = [("addition", "variants", {"only": VARIANTS}, "randpe")]
for name, chosen, baseline in (
    ("addition", {"across": ACROSS, "only": MAIN}, "tape"),
    ("passkey", {}, None),
    ("extension", {}, "adape"),
    ("bases", BASES, "adape"),
    ("encodings", {}, "rope"),
    ("text", {}, "rope"),
    ("text_more", {}, None),
    ("bigrams", {}, "tape"),
    ("bigrams_more bigrams", ONE_RATE, "rope"),
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
    lines = re.findall(r"^\| .*(?:TAPE|alone|gain).*\|$", text, re.MULTILINE)
    shown = [line.strip(" |").split(" | ")[1:] for line in lines]
    for place, (runs, length) in enumerate(product(("[rt]", "0.008_"), (64, 512))):
        rows = load([RESULTS / "contextual"], only=[f"contextual_{runs}*"])
        rows = rows[(rows["measure"] == "loss") & rows["first"].isna() & (rows["length"] == length)]
        found = differences(rows, "rope").loc[[*names, "rope_gain"]]
        for each, told in zip(found.itertuples(), (x[place] for x in shown), strict=True):
            digits = len(told.partition(".")[2].partition(" ")[0])
            assert told == f"{each.mean:+.{digits}f} ± {each.half_width:.{digits}f}"


PARTS = {"text": ["text", "bigrams"], "context_extension": ["extension", "bases"]}
PARTS |= {"suite": ["tasks"], "retrieval": ["needle_long"], "arithmetic": ["addition"]}


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


def test_the_lowest_losses_on_bigrams_are_those_of_the_page(capsys):
    page = ROOT / "docs" / "text.md"
    (code,) = blocks(page, "python")
    exec(compile(code, page.name, "exec"), {})
    assert capsys.readouterr().out.strip() in page.read_text()


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


NAMES = {"rope": "RoPE", "nope": "NoPE", "alibi": "ALiBi", "fire": "FIRE"}


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def gaps(results, runs, baseline):
    """Losses at the trained length minus those of a row, as the pages write them, by row."""
    rows = load([RESULTS / results], only=runs)
    rows = rows[(rows["measure"] == "loss") & (rows["length"] == 256) & rows["first"].isna()]
    found = differences(rows, baseline)
    return {row.Index: f"{row.mean:+.3f} ± {row.half_width:.3f}" for row in found.itertuples()}


def test_parts_maps_and_widths_of_tape():
    """The paper's Tables 6 and 7."""
    text = page("replication")
    shown = gaps("contextual_text", ["*_0.016_*"], "tape")
    for update, row in {
        "none (RoPE) | 57.2": "rope",
        "after the MLP only | 58.4": "tape attention=False",
        "in attention only | 57.6": "tape feed_forward=False",
    }.items():
        assert f"| {update} | {shown[row]} |" in text
    both = "tape equivariant={} tensorial={}".format
    runs = [f"ablation_{row}_1[0-5]" for row in ABLATIONS.tables["equivariance"]]
    shown = gaps("ablations", runs, both(True, True))
    for maps, row in {
        "neither | 56.2": both(False, False),
        "equivariant only | 55.7": both(True, False),
        "tensorial only | 54.1": both(False, True),
    }.items():
        assert f"| {maps} | {shown[row]} |" in text
    runs = [f"ablation_{row}_1?" for row in ABLATIONS.tables["width"]]
    shown = gaps("ablations", runs, "tape width=None") | {"tape width=None": "0"}
    cells = " | ".join(shown[f"tape width={x}"] for x in ("1H", "2H", "None", "8H", "16H"))
    assert f", minus that of 4 | {cells} |" in text


BASELINES = ("rope", "fire")


def test_encodings_added_on_text():
    rows = load([RESULTS / "text", RESULTS / "text_more"])
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    table = (RESULTS / "text_more" / "table.md").read_text()
    found = {}
    for encoding, baseline in product(load([RESULTS / "text_more"])["row"].unique(), BASELINES):
        for length, own in whole.groupby("length"):
            x = found[encoding, baseline, length] = differences(own, baseline).loc[encoding]
            interval = f"{x['mean']:+.4f} ± {x['half_width']:.4f}"
            line = f"| {encoding} | {baseline} | {length:,.0f} | {interval} |"
            assert f"\n{line} {x['p']:.2g} | {x['detectable']:.2g} |\n" in table
    assert sum(table.count(f" | {baseline} | ") for baseline in BASELINES) == len(found)
    text = " ".join(page("text").split())
    better_far = ("cope", "relative", "pope", "wall", "path", "carope")
    unseen_there = {("relative", length) for length in (256, 512)}
    near = {"t5": 0.12, "fox": 0.08, "kerple": 0.09}  # loss that would be detected
    far = {"fope": 0.06, "rope_gain": 0.12, "repo": 0.04, "selective": 0.12}
    assert "KERPLE** cannot be told from FIRE (0.12, 0.08 and 0.09 nats would be, uncorr" in text
    assert "better than RoPE at every length (p at most 0.0084)" in text
    assert "(p at most 0.024) and cannot be told from RoPE at the trained one (corrected" in text
    assert "cannot be told from RoPE (0.06 and 0.12 would be at four times the length)" in text
    assert "(p at most 0.034) and cannot be told from it at four times (0.04 and 0.12" in text
    assert "(p at most 0.005), by 0.27 ± 0.07 and 1.43 ± 0.37 nats at four times, and" in text
    assert "are worse than FIRE at all three lengths (p at most 0.043), but relative" in text
    for (encoding, baseline, length), x in found.items():
        unseen = x["p"] > 0.05 and round(x["detectable"], 2)
        if baseline == "fire" and (encoding in near or (encoding, length) in unseen_there):
            assert unseen and unseen <= near.get(encoding, 0.12)
        elif baseline == "fire":
            assert x["mean"] > 0 and x["p"] < 0.0435
        elif encoding in far and length == 1024:
            assert unseen == far[encoding]
        elif encoding in ("fope", "rope_gain"):
            assert unseen
        elif encoding in ("repo", "selective") and length == 256:
            assert x["mean"] > 0 and x["p"] < 0.0345
        elif encoding in ("learned", "sincos"):
            assert unseen == 0.06 if length == 256 else x["mean"] > 0 and x["p"] < 0.00505
        elif encoding in ("grape_ap", "stick_breaking"):
            assert x["mean"] < 0 and x["p"] < 0.00845
        elif encoding in better_far and length == 1024:
            assert x["mean"] < 0 and x["p"] < 0.0245
        elif encoding in better_far and length == 256:
            assert x["p"] > 0.135 and unseen <= 0.08
    shown = {
        encoding: f"{x['mean']:.2f} ± {x['half_width']:.2f}"
        for (encoding, *rest), x in found.items()
        if rest == ["rope", 1024]
    }
    assert (shown["learned"], shown["sincos"]) == ("0.27 ± 0.07", "1.43 ± 0.37")


def test_bigrams_at_one_rate():
    rows = load([RESULTS / "bigrams_more", RESULTS / "bigrams"], **ONE_RATE)
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    near, _, _, far = (differences(own, "rope") for _, own in whole.groupby("length"))
    first = far.sort_values("mean")[:5]
    assert [*first.index] == ["wall", "fox", "kerple", "cope", "relative"]
    assert [*first["mean"].round(2)] == [-0.49, -0.48, -0.47, -0.47, -0.47]
    assert {*first["p"].round(3)} == {0.015} and near.loc[first.index, "p"].min() > 0.2
    assert near.loc[first.index, "detectable"].max() <= 0.003
    losses = whole[whole["length"] == 512].groupby("row")["value"].mean()[first.index] - 1.447
    assert [*losses.round(2)] == [0.07, 0.07, 0.08, 0.08, 0.08]
    few = far.loc[["t5", "grape_ap", "xpos"]].round(2)
    assert [*few["mean"]] == [-0.3, -0.26, -0.14] and few["half_width"].iloc[2] == 0.03
    few = far.loc[["t5", "grape_ap", "learned", "sincos"], "p"]
    assert [*few.round(3)] == [0.036, 0.039, 0.066, 0.039]
    absolute = [each.loc[["learned", "sincos"]] for each in (near, far)]
    assert [*absolute[0]["mean"].round(3)] == [-0.01, -0.009]
    assert [*absolute[0]["half_width"].round(3)] == [0.001] * 2
    assert absolute[0]["p"].max().round(4) == 0.0013
    assert [*absolute[1]["mean"].round(2)] == [-0.18, -0.22]
    assert [*absolute[1]["half_width"].round(2)] == [0.11, 0.10]
    assert near["mean"]["grape_ap"].round(2) == 0.08
    repo = whole[(whole["row"] == "repo") & (whole["length"] == 64)]["value"]
    assert sorted(repo > 2.3) == [False, False, False, True]
    assert len(far) == 17


def test_pass_keys_of_each_seed():
    rows = load([RESULTS / "passkey"])
    rows = rows[rows["measure"] == "accuracy"]
    found = 100 * weighted_mean(rows, ["row", "seed", "length"])
    for row, own in found.groupby("row"):
        cells = []
        for seed in range(3):
            cell = ", ".join(f"{own[row, seed, n]:.0f}" for n in (128, 256, 512, 1024))
            cells.append(cell if own[row, seed, 128] >= 50 else f"*{cell}*")
        assert f"| {row} | {' | '.join(cells)} |" in page("retrieval")


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
