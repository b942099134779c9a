"""Comparisons over seeds: the numbers, the names of the rows, and what is refused; and the page of
all results: what it shows, and that nothing on it is run or loaded."""

import html
import json
import os
import re
import shutil

import pytest
import torch
from commands import ROOT, tape
from conftest import refuses
from results import add_grid, make_run

from tape.core import provenance
from tape.core.files import write_bytes, write_text
from tape.core.provenance import TRAINED
from tape.core.run_folder import register_run
from tape.results.compare import compare, markdown, read
from tape.results.report import MARK


def make_adder(folder, position, seed=0, outside=1, asked=(), **changes):
    """A run with a `grid`."""
    add_grid(make_run(folder, position, seed, **changes) / "grid", outside, **dict(asked))
    return folder


@pytest.fixture
def runs(tmp_path):
    outside = [("tape", 0, 2), ("tape", 1, 4), ("tape", 2, 9), ("rope", 0, 1), ("rope", 1, 1)]
    return [make_adder(tmp_path / f"add_{name}_{n}", name, n, right) for name, n, right in outside]


ALL = ("model.*", "trainer.*")  # settings that may differ


def labels(runs, across=ALL):
    groups = read(runs, "grid", across).groups["arithmetic"]
    return {label: len(group) for label, group in groups.items()}


@pytest.mark.parametrize(("name", "value"), [("intervention", "initial"), ("extend", "dca 2")])
def test_evaluations_of_a_changed_model_are_rows_of_their_own(name, value, runs, tmp_path):
    """Saved results keep them apart, too."""
    tapes, ropes = runs[:3], [run / "grid" for run in runs[3:]]
    changed = [add_grid(run / "grid_initial", 0, **{name: value}) for run in tapes]
    shutil.copy(tapes[0] / "grid" / "grid.csv", tapes[0])  # the run's own folder remains a run
    assert labels(runs) == {"tape": 3, "rope": 2}
    both = [*(run / "grid" for run in tapes), *changed]
    expected = {"tape": 3, f"tape {name}={value}": 3, "rope": 2}
    assert labels([*both, *ropes]) == expected
    text, _ = compare(both, tmp_path / "saved", across=ALL, baseline="tape")
    assert labels([tmp_path / "saved", *ropes]) == expected
    assert markdown(read([tmp_path / "saved"], across=ALL), "tape") == text
    for chosen, count in (("add_tape_0", 2), ("grid_initial", 1)):
        for place in ([tmp_path / "saved"], both):
            assert len(read(place, across=ALL, only=[chosen]).labels) == count


def test_saved_results_are_the_runs_in_them(runs, tmp_path):
    """Alone, in part, and beside other runs, with what they were made with."""
    for _ in range(2):
        provenance.record(runs[0])  # resumed: the same once
    (old := tmp_path / "a" / "heatmaps_synthetic.png").parent.mkdir()
    old.touch()  # of an earlier comparison
    text, _ = compare(runs, tmp_path / "a", "grid", baseline="rope")
    row = ",0,arithmetic,accuracy,1,2,0.2,10,share\n"  # add_tape_0: 1 and 2 digits are integers
    assert row in (tmp_path / "a" / "results.csv").read_text() and not old.exists()
    again, _ = compare([tmp_path / "a"], tmp_path / "b", baseline="rope")
    assert again == text and "| tape | accuracy, beyond | +" in text
    made = json.loads((tmp_path / "b/settings.json").read_text())["runs"]["add_tape_0"]
    (origin,) = made["origin"]
    assert origin.items() < provenance.read(runs[0])[0].items()
    assert {*origin} == {"commit", "machine", "threads", "versions"}
    assert "torch" in origin["versions"] and origin["threads"] == torch.get_num_threads()
    for name in ("results.csv", "settings.json", "heatmaps.png"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    compare(runs[:3], tmp_path / "part", "grid")
    mixed, _ = compare([tmp_path / "part", *runs[3:]], tmp_path / "c", "grid", baseline="rope")
    assert mixed == text
    assert read([tmp_path / "a"], only=["add_rope_*"]).labels == ["rope"]
    with pytest.raises(ValueError, match=r"--only nope matches none of the runs: add_tape_0, "):
        read([tmp_path / "a"], only=["nope"])


def test_damaged_results_are_refused(runs, tmp_path):
    compare(runs, tmp_path / "a", "grid")
    for name, old, new, message in (
        ("results.csv", "share\n$", "share", "ends in the middle of a line"),
        ("results.csv", "value", "x", "damaged"),
        ("results.csv", "add_rope_0", "other", "its runs are not those"),
        ("results.csv", ",1.0,10", ",one,10", "damaged|one"),
        ("settings.json", '"seed"', '"sed"', "damaged"),
        ("settings.json", '"rope"', '"fire"', "of other settings"),
    ):
        path = tmp_path / "a" / name
        whole = path.read_text()
        path.write_text(re.sub(old, new, whole))
        refuses(message, read, [tmp_path / "a"])
        path.write_text(whole)


TAPE = {"position__theta": 10000, "position__sampler": "shift", "position__width": 4}
ROPE = {"position__theta": 500, "position__sampler": "shift"}
SAME = [{"position__theta": 10000, "position__scaling": x} for x in (None, {})]
NAMED = {  # by labels, settings of each encoding
    # by all that differs, and not by what only another encoding has
    "rope theta=None, rope theta=5, tape": {"rope": [{}, {"position__theta": 5}], "tape": [{}]},
    "tape, tape model.hidden_size=16, rope": {
        "tape": [{}, {}, {"model__hidden_size": 16}],
        "rope": [{}],
    },
    # by the whole name of a setting where another ends alike
    "learned position.length=9, learned position.length=16": {
        "learned": [{"position__length": 9}, {"position__length": 16}]
    },
    # 10000 is 10000.0; a setting that was not there yet is null, or an empty group
    "rope": {"rope": [*SAME, {"position__theta": 10000.0}]},
    "rope theta=500, tape theta=10000": {"rope": [ROPE], "tape": [TAPE]},
    # by no default of an encoding, where another has another
    "fox, wall start=2.0": {"fox": [{"position__start": 0.0}], "wall": [{"position__start": 2.0}]},
    "rope theta=500, tape, tape trainer.seed=0": {
        "rope": [ROPE],
        "tape": [TAPE, TAPE | {"trainer__seed": 0}],
    },
}


@pytest.mark.parametrize(("expected", "given"), NAMED.items())
def test_rows_are_named_by_what_differs(expected, given, tmp_path):
    each = [(name, changes) for name, settings in given.items() for changes in settings]
    runs = [make_adder(tmp_path / f"{n}", name, n, **x) for n, (name, x) in enumerate(each)]
    assert ", ".join(labels(runs)) == expected


def test_rates_of_encodings_are_named_below_the_table(tmp_path):
    """A row per encoding is named by it alone; rows of one encoding by their rates."""
    given = [("rope", 0, 0.2), ("rope", 1, 0.2), ("fire", 0, 0.1), ("rope", 0, 0.4)]
    runs = []
    for n, (*about, rate) in enumerate(given):
        runs.append(make_adder(tmp_path / f"{n}", *about, trainer__learning_rate=rate))
    texts = [markdown(read(runs[:count], "grid")) for count in (2, 3, 4)]
    assert "Learning rates" not in texts[0]
    assert "| rope | 2 |" in texts[1] and "\nLearning rates: rope 0.2, fire 0.1." in texts[1]
    assert "| rope trainer.learning_rate=0.4 | 1 |" in texts[2]
    assert "\nLearning rates: fire 0.1." in texts[2]


def test_a_continued_run_is_what_it_was_until_it_ends(tmp_path):
    """And never the same as one that was to be as long from the beginning."""
    run = make_adder(tmp_path / "a", "rope")
    longer = json.loads((run / "run.json").read_text())
    longer["trainer"]["max_steps"] = 9
    killed = shutil.copytree(run, tmp_path / "killed")  # before its first checkpoint
    (killed / "metrics.jsonl").touch()
    assert "earlier_max_steps" not in register_run(killed, longer)
    (run / "checkpoint-5").mkdir()
    recorded = register_run(run, longer)
    assert recorded["earlier_max_steps"] == [5] and register_run(run, longer) == recorded
    both = run, make_adder(tmp_path / "b", "rope", 1, trainer__max_steps=9)
    assert [*labels(both)] == ["rope trainer.max_steps=5", "rope trainer.max_steps=9"]
    write_text(run / TRAINED, json.dumps(recorded))
    found = labels(both, (*ALL, "earlier_max_steps"))
    assert [*found] == ["rope earlier_max_steps=[5]", "rope earlier_max_steps=None"]


def test_what_cannot_be_compared_is_refused(runs, tmp_path):
    def refused(message, seed=7, **changes):
        (name,) = changes or ["other"]
        other = make_adder(tmp_path / name, "tape", seed, **changes)
        refuses(message, read, [*runs, other], "grid")

    refused(r"evaluated with different .*: samples: 10 -> 20", asked={"samples": 20})
    refused(r"model\.hidden_size: 8 -> 16; .* with --across", model__hidden_size=16)
    refused(r"tokens\.train: one -> two; .* with --across", tokens__train="two")
    refused(r"length: 8 -> 9; .* with --across", length=9)
    refused(r"add_tape_2 and .*other are the same run, seed 2", seed=2)
    with pytest.raises(
        ValueError, match="--baseline 'tpae' is not a row; choose one of tape, rope"
    ):
        compare(runs, tmp_path / "out", "grid", baseline="tpae")
    nothing = tmp_path / "nothing"
    told = f"has none of .*`tape perplexity --out {nothing}/compare/perplexity.csv`"
    refuses(told, read, [nothing])
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_read_is_named_below_the_table(runs, tmp_path, capsys):
    (runs[0] / "model.safetensors").write_bytes(b"trained further")
    shutil.rmtree(runs[1] / "grid")
    (runs[2] / TRAINED).unlink()
    (runs[3] / "grid" / "summary.json").write_text("{")
    found = read(runs)
    other, absent, unfinished, damaged = (found.missing[run] for run in runs[:4])
    assert "was evaluated with other weights" in other
    assert "grid has none of perplexity.csv, grid.csv, passkey.csv, synthetic.csv: ev" in absent
    assert "has no trained.json: give the folder of a run that" in unfinished
    assert "summary.json is damaged" in damaged and found.labels == ["rope"]
    with pytest.raises(SystemExit, match="error: 4 of 5 are not in the table"):
        tape("compare", *runs, "--out", tmp_path / "out")
    assert f"* {runs[1]}: {runs[1]}/grid has none of" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: 1 of 2 are not in the table"):
        tape("compare", runs[4], "--out", tmp_path / "out", "--failed", runs[3])
    assert f"* {runs[3]}: the run failed, and results of an earlier" in capsys.readouterr().out


def test_the_evaluation_is_the_one_that_all_have(runs):
    (runs[0] / "compare").mkdir()
    assert read(runs).labels == ["tape", "rope"]
    for run in runs[1:]:
        (run / "compare").mkdir()
    refuses(r"have compare and grid: choose one with --name", read, runs)
    assert len(read(runs, "grid").labels) == 2


PICTURE = min((ROOT / "docs" / "results").rglob("*.png"))
EVIL = "<script>alert(1)<script>"  # the name of a folder has no slash
TABLE = "| encoding | n |\n|---|---|\n| rope | 3 |\n"


@pytest.fixture
def output(tmp_path):
    """Three runs and a comparison, whose texts would like to be parts of the page."""
    output = tmp_path / "output"
    write_text(output / "half" / "run.json", "{")
    for name in ("run", "trained"):
        write_text(output / EVIL / f"{name}.json", "{}")
        write_text(output / "longer" / f"{name}.json", f'"{name}"')  # goes on for more steps
    write_text(output / "longer" / "report" / "report.md", "of fewer steps")
    write_text(output / "report" / "run.json", "{}")  # a run of this name
    text = "# r\n\nsaid\n\n    <b>&amp; more</b>\n\n[y](z) \x1b[2J\u202eb\n"
    write_text(output / EVIL / "report" / "report.md", text)
    write_bytes(output / EVIL / "report" / "loss.png", PICTURE.read_bytes())
    provenance.record(output / EVIL)
    write_text(output / "compared" / "table.md", f"the table\n\n{TABLE}")
    write_bytes(output / "compared" / "curves.png", PICTURE.read_bytes())
    write_text(output / "code" / "train.py", "")
    return output


def test_the_page_shows_what_the_folders_hold(output, tmp_path, capsys):
    """And nothing that was read becomes a part of it."""
    tape("report", output, output / EVIL, "--out", tmp_path / "report")
    (file,) = (tmp_path / "report").iterdir()
    assert str(file) in capsys.readouterr().out
    page = file.read_text()
    tags, text = re.findall(r"<(\w+)", page), html.unescape(re.sub("<[^>]*>", "", page))
    assert "the table" in text
    assert all(f"\n{output / name}\n" in text for name in ("half", "longer", "report"))
    of_sections = page[page.index("</nav>") :]
    assert re.findall("<t[hd]>(.*)</t[hd]>", of_sections) == ["encoding", "n", "rope", "3"]
    sources = re.findall(r'<img [^>]*src="(.{22})', page)
    assert sources == ["data:image/png;base64,"] * 2 and tags.count("img") == 2
    assert (tags.count("li"), tags.count("a"), tags.count("section")) == (3, 3, 3)
    (origin,) = provenance.read(output / EVIL)
    for value in (origin["command"], origin["machine"], str(origin["commit"])):
        assert value in text
    assert {"script", "b", "i", "link", "iframe"}.isdisjoint(tags)
    assert not re.search(r"<[^>]* on\w+=", page)
    for told in (EVIL, "<b>&amp; more</b>", "[y](z) \N{REPLACEMENT CHARACTER}[2J"):
        assert told in text


def test_the_page_begins_with_the_newest_comparison_and_ends_with_runs(tmp_path):
    """And so does the summary above them, which has the first row of each one's first table."""
    folders = {"a_run": 9, "zoo/table": 5, "old": 1, "new": 3}
    for name, age in folders.items():
        file = "report/report.md" if name == "a_run" else "table.md"
        file = "state.md" if name == "zoo/table" else file
        write_text(tmp_path / name / file, f"| row | n |\n|---|---|\n| {name} | 3 |\n")
        os.utime(tmp_path / name / file, (age, age))
    for name in ("run.json", "trained.json"):
        write_text(tmp_path / "a_run" / name, "{}")
    write_text(tmp_path / "a_run" / "grid" / "summary.md", "of the run")
    tape("report", tmp_path, "--out", tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text()
    order = ["new", "old", "zoo/table", "a_run/grid", "a_run"]
    links = re.findall(r'<a href="#(\d)">(.*)</a>', page)
    assert links == [(str(n), f"{tmp_path / name}") for n, name in enumerate(order, 1)]
    sections = re.findall(r'<section id="(\d)">\n<h2>(.*)</h2>', page)
    assert sections == links
    assert page.index("Comparisons") < page.index("row new, n 3") < page.index("Single runs")


def test_what_cannot_be_reported_is_refused(output, tmp_path):
    out, empty = tmp_path / "report", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SystemExit, match=r"^error: no results in .*empty: to create .* run tape"):
        tape("report", empty, "--out", out)
    assert not out.exists()
    write_text(out / "index.html", "my own page")
    with pytest.raises(SystemExit, match=r"^error: --out .*index\.html contains something else"):
        tape("report", output, "--out", out)
    write_text(out / "index.html", f"<html>{MARK}")  # a report may be made again
    tape("report", output, "--out", out)
    assert MARK in (out / "index.html").read_text()
