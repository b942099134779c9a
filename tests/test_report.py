"""The page of all results: what is found, what is broken, that nothing on it runs or breaks it."""

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from results import lay_out

from scrolls.score import csv_of, markdown, table
from tape import provenance as origin
from tape.analysis import stability
from tape.evaluation import curves, zero_shot
from tape.results import html
from tape.results.compare import compare
from tape.results.heatmap import draw
from tape.results.html import SCRIPT, has_table, picture
from tape.results.kinds import tables_of
from tape.results.report import main
from tape.results.runs import read_saved
from tape.tasks.passkey.results import PASSKEY
from tape.training.report import publish

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "docs" / "results" / "addition_ablations"
EVIL = "<script>alert(1)<script>"  # the name of a folder has no slash
SETTINGS = {
    "seed": 3,
    "task": {"_target_": "tape.training.text.TextTask"},
    "position": {"name": "tape", "note": "</pre><img src=x onerror=alert(2)>"},
    "trainer": {"max_steps": 20},
}


class Page(HTMLParser):
    """The tables of a page as text, its pictures, and the scripts that a browser would run."""

    def __init__(self, path):
        super().__init__()
        self.tables, self.text, self.sources, self.scripts, self.within = [], "", [], [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        if tag not in ("img", "meta", "wbr"):  # nothing is within these
            self.within.append(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag == "img":
            self.sources.append(dict(attributes)["src"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        while tag in self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self.within:
            self.scripts.append(data)
        elif "style" not in self.within:
            self.text += data
            if {"td", "th"} & set(self.within[-3:]):
                self.tables[-1][-1][-1] += data

    def rows(self, *head):
        """The rows of the tables whose first titles these are."""
        found = [t[1:] for t in self.tables if t and t[0][: len(head)] == list(head)]
        assert found, head
        return [row for rows in found for row in rows]


def make_run(folder, settings=SETTINGS, steps=20, trained=True, perplexity=164.873):
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(settings))
    metrics = [{"step": n, "loss": 8.0 / n} for n in range(5, steps + 1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    if trained:
        (folder / "trained.json").write_text(json.dumps(settings))
        scores = [
            {"length": 16 * n, "times": n, "perplexity": perplexity + n, "bits_per_byte": 2.0}
            for n in (1, 2)
        ]
        summary = {"position": {"name": "tape"}, "parameters": 1234567, "steps": steps}
        summary |= {"perplexity": scores, "scored_bytes": 99}
        text = f"# {folder.name}\n\nhere\n\n    said: <b>&amp; more</b>\n"
        publish(folder, metrics, summary, text)
        origin.record(folder)


def make_all(output):
    """Results of every kind, written by what writes them."""
    make_run(output / EVIL)
    make_run(output / "run_10", perplexity=10.0)
    make_run(output / "run_9", perplexity=9.0)
    make_run(output / "llama_lora", SETTINGS | {"peft": {"name": "lora"}})
    for run in read_saved(COMMITTED):
        lay_out(run, output / run.folder.name)
    runs = sorted(output.glob("abl_*"))
    compare(runs, output / "comparison", "grid", across=["model.num_recurrences"])
    draw(runs[0] / "grid", "base")

    asked = {"model": "0", "trained": 128, "keys": 1, "values": 1, "wrong": 0}
    cells = [[128, 0.5, 20, 20, 20, 2560], [256, 0.5, 20, 5, 5, 5120]]
    row = {"batch": 0, "cells": cells, "wrong": []}
    PASSKEY.write(output / "run_9" / "passkey", asked, [row])

    about = dict.fromkeys(curves.ABOUT, "x") | {"convention": "sliding", "model": "<i>m</i>"}
    bins = curves.binned(np.array([1, 2, 3]), np.log([2.0, 4.0, 8.0]))
    curves.write(output / "run_9" / "perplexity.csv", about, {256: [bins], 1024: [bins]})
    row = dict.fromkeys(zero_shot.COLUMNS, "0") | {"task": "arc_easy", "metric": "acc"}
    row |= {"model": "m", "value": 0.5, "stderr": ""}
    zero_shot.add(output / "run_9" / "zero_shot.csv", [row])
    row = {"model": "m", "row": "m", "dtype": "float32", "move": "ids", "by": 3, "layer": 1}
    row |= {"attention": 0.25, "dot": ""}
    write(
        output / "stability" / "stability.csv",
        f"{','.join(row)}\n{','.join(map(str, row.values()))}\n",
    )
    write(output / "stability" / "stability.md", stability.markdown([row]))
    write(output / "visualize" / "attention.csv", "model,layer,entropy\nm,1,0.123456\n")
    write(output / "cost" / "cost.csv", "encoding,macs\nrope,1\n")
    write(output / "cost" / "cost.md", "| encoding | MACs, G |\n|---|---|\n| rope | 160.46 |\n")

    rows = table({"adape": {"quality": 12.5}}, "here, validation")
    write(output / "metrics" / "table.md", markdown(rows))
    write(output / "metrics" / "table.csv", csv_of(rows))
    scored = {"scrolls_score": 12.5, "errors": ["</td></table><script>x</script>"]}
    write(output / "metrics" / "adape" / "quality_metrics.json", json.dumps(scored))


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A folder with results of every kind."""
    output = tmp_path_factory.mktemp("results") / "output"
    make_all(output)
    return output


@pytest.fixture
def report(tmp_path, capsys):
    def report(*folders):
        main([*map(str, folders), "--out", str(tmp_path / "report")])
        (file,) = (tmp_path / "report").iterdir()
        assert str(file) in capsys.readouterr().out
        return Page(file)

    return report


def test_everything_is_found(results, report):
    page = report(results)
    overview = {row[0]: row[1:] for row in page.rows("experiment", "found")}
    assert overview == {
        "Pre-training": ["runs: 3", "-", "-"],
        "Arithmetic": ["comparisons: 1, evaluations: 7, runs: 7", "-", "-"],
        "Synthetic tasks": ["nothing", "-", "-"],
        "SCROLLS": ["tables: 1, folders of scores: 1", "-", "-"],
        "Context extension": ["runs: 1", "-", "-"],
        "Perplexity by length": ["tables: 1", "-", "-"],
        "Retrieval": ["evaluations: 1", "-", "-"],
        "Zero-shot tasks": ["tables: 1", "-", "-"],
        "Stability": ["tables: 1", "-", "-"],
        "Attention and positions": ["folders of pictures: 1", "-", "-"],
        "Efficiency": ["tables of cost: 1", "-", "-"],
    }
    runs = page.rows("run", "encoding", "seed", "state", "steps", "parameters", "perplexity 1x")
    nine = next(row for row in runs if row[0].endswith("run_9"))
    assert nine[1:9] == ["tape", "3", "finished", "20", "1,234,567", "10.00", "11.00", "2.000"]
    assert page.rows("run", "encoding", "method")[0][1:4] == ["tape", "lora", "3"]
    grids = page.rows("evaluation", "encoding", "trained to digits")
    base = next(row for row in grids if "abl_base" in row[0])
    summary = json.loads((results / "abl_base" / "grid" / "summary.json").read_text())
    whole = (100 * summary["all"][key] for key in ("accuracy", "low", "high"))
    assert base[1:4] == ["tape", "5 x 5", "10 x 10"]
    assert base[-1] == "{:.1f} ({:.1f} to {:.1f})".format(*whole)
    assert page.rows("evaluation", "encoding", "keys x values")[0][4:] == [
        "100.0 (83.9 to 100.0)",
        "25.0 (11.2 to 46.9)",
    ]
    assert page.rows("table", "model")[0][-2:] == ["4.000", "4.000"]
    assert ["adape", *"---", "12.50", *"----", "here, validation"] in page.rows(
        "encoding", "Qasper F1"
    )
    assert ["m", "1", "0.1235"] in page.rows("model", "layer", "entropy")
    for command in ("tape sweep sweep=passkey", "tape sweep sweep=extension"):
        assert command in [row[-1] for row in page.rows("experiment", "nothing found of")]


def test_the_papers_numbers_are_beside(results, report):
    page = report(results)
    addition = page.rows("encoding", "trained to digits", "tested to digits")
    assert ["TAPE", "20", "40", "41.42"] in addition and ["NoPE", "40", "80", "22.45"] in addition
    assert ["48", "132.0", "86.6", "63.9", "52.2"] in page.rows("width", "128")
    scrolls = [" ".join(row[:8]) for row in page.rows("encoding", "Qasper F1")]
    assert "TAPE 11.52 72.80 6.79 11.60 12.42 10.34 15.18" in scrolls
    assert "74.24" in page.text and "(paper)" in page.text  # Tables 9 and 8


def test_a_run_says_where_it_comes_from(results, report):
    page = report(results)
    (mine,) = origin.read(results / "run_9")
    assert shlex.split(mine["command"])[1:] == sys.orig_argv[1:] and " cores" in mine["machine"]
    inside = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if inside.returncode == 0:
        assert mine["commit"].split()[0] == inside.stdout.strip()
    for value in (mine["command"], mine["machine"], str(mine["commit"]), "trainer.max_steps: 20"):
        assert value in page.text
    origin.record(results / "run_9")
    assert [each["command"] for each in origin.read(results / "run_9")] == [mine["command"]] * 2


def test_nothing_that_was_read_becomes_a_part_of_the_page(results, report):
    page = report(results)
    assert page.scripts == [SCRIPT]
    assert page.sources and all(src.startswith("data:image/png;base64,") for src in page.sources)
    assert EVIL in page.text and "<i>m</i>" in page.text
    assert "</pre><img src=x onerror=alert(2)>" in page.text
    assert "</td></table><script>x</script>" in page.text
    assert "said: <b>&amp; more</b>" in page.text
    control = "a\x00\x1b[2J\udcff\u202eb"
    given = {"about": [], "overview": [control], "sections": []}
    assert "<p>a��[2J��b</p>\n" in html.page(html.TEMPLATES / "page.html", "p", "t", **given)


def test_what_is_broken_or_unfinished_is_listed(results, report, tmp_path):
    output = tmp_path / "output"
    shutil.copytree(results, output)
    make_run(output / "half", steps=10, trained=False)
    (output / "half" / "metrics.jsonl").open("a").write('{"step": 15, "lo')
    make_run(output / "no_config")
    (output / "no_config" / "run.json").write_text('{"seed": 3, "tra')
    make_run(output / "odd_report")
    (output / "odd_report" / "report" / "report.json").write_text(
        '{"steps": 20, "perplexity": [3]}'
    )
    make_run(output / "odd_metrics")
    (output / "odd_metrics" / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    (output / "abl_base" / "grid" / "summary.json").unlink()
    (output / "run_9" / "perplexity.csv").write_text("model,data\na,b\n")
    table = output / "comparison" / "results.csv"
    table.write_text(table.read_text()[:-9])
    (output / "metrics" / "adape" / "quality_metrics.json").write_text("[")
    journal = {"shard": "1/1", "batches": 3}
    rows = [json.dumps(row) + "\n" for row in (journal, {"batch": 1})]
    write(output / "run_9" / "grid" / "shard-1-of-1" / "parts.jsonl", "".join(rows))
    write(output / "compare_add" / "add_adape_0.log", "step 1")
    write(output / "compare_add" / "add_adape_0.finished", "experiment=addition")
    write(output / "compare_ablation" / "ablation_full_0.log", "step 1")
    (output / "compare_ablation" / "width").mkdir()
    (output / "abl_shift" / "model.safetensors").write_bytes(b"other weights")

    page = report(output)
    found = {row[0]: row[1:] for row in page.rows("place", "state", "why")}
    faults = {str(Path(place).relative_to(output)): why for place, why in found.items()}
    expected = {
        "half": ("unfinished", "10 of 20 steps are done"),
        "no_config": ("broken", "run.json is damaged"),
        "odd_report": ("broken", "runs cannot be read: TypeError"),
        "odd_metrics": ("broken", "metrics.jsonl, line 2, is damaged"),
        "abl_base/grid": ("broken", "summary.json"),
        "run_9": ("broken", "its columns are model, data instead of"),
        "comparison": ("broken", "results.csv ends in the middle of a line"),
        "metrics/adape": ("broken", "quality_metrics.json is damaged"),
        "run_9/grid": ("unfinished", "2 of 3 batches are missing"),
        "abl_shift/grid": ("broken", "was evaluated with other weights"),
        "abl_shift": ("unfinished", "no report written"),
        "compare_add": ("unfinished", "only what runs printed"),
    }
    assert faults.keys() == expected.keys()
    for place, (state, words) in expected.items():
        assert faults[place][0] == state and words in faults[place][1], place
    overview = {row[0]: row[1:] for row in page.rows("experiment", "found")}
    assert overview["Pre-training"] == ["runs: 4", "1", "2"]  # the others are as they were
    assert overview["Stability"] == ["tables: 1", "-", "-"]
    states = {Path(row[0]).name: row[3] for row in page.rows("run", "encoding", "seed", "state")}
    assert states["half"] == "unfinished" and states["run_10"] == "finished"


def test_a_run_that_goes_on_has_no_old_report(tmp_path, report):
    """Continued to 40 steps, stopped at 30, or at 40 before its new report; then the numbers that
    are there are of 20 steps."""
    for steps, name in ((30, "going"), (40, "there")):
        make_run(tmp_path / "output" / name)
        longer = SETTINGS | {"trainer": {"max_steps": 40}}
        (tmp_path / "output" / name / "run.json").write_text(json.dumps(longer))
        with (tmp_path / "output" / name / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": steps, "loss": 1.0}) + "\n")
    page = report(tmp_path / "output")
    rows = page.rows("run", "encoding", "seed", "state", "steps", "parameters")
    assert [row[3:] for row in rows] == [
        ["unfinished", steps, "", "", ""] for steps in ("30", "40")
    ]
    why = [row[2] for row in page.rows("place", "state", "why")]
    assert why == [
        "30 of 40 steps are done: the same command continues",
        "40 of 40 steps are done, and trained.json is missing or of others",
    ]


def test_rows_of_other_weights_in_one_table_say_so(tmp_path, report):
    for weights, nll in (("aaa", 2.0), ("bbb", 3.0)):
        about = dict.fromkeys(curves.ABOUT, "x") | {"model_hash": weights, "convention": "sliding"}
        bins = curves.binned(np.array([1, 2]), np.array([nll, nll]))
        curves.write(tmp_path / "output" / "perplexity.csv", about, {256: [bins]})
    page = report(tmp_path / "output")
    assert [row[2] for row in page.rows("table", "model", "model_hash")] == ["aaa", "bbb"]


def test_links_are_followed_once(tmp_path, report):
    make_run(tmp_path / "disk" / "run")
    (tmp_path / "disk" / "run" / "back").symlink_to(tmp_path / "output")
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "run").symlink_to(tmp_path / "disk" / "run")
    odd = SETTINGS | {"task": {"_target_": None}}
    make_run(tmp_path / "output" / "odd", odd)
    page = report(tmp_path / "output")
    rows = page.rows("run", "encoding", "seed")
    assert sorted(Path(row[0]).name for row in rows) == ["odd", "run"]


def test_results_that_were_put_aside_are_shown(report):
    page = report(ROOT / "docs" / "results")
    assert page.rows("model", "row", "model hash", "position", "dtype")  # a csv without its text
    assert ["tape", "3", "100.0 ± 0.0"] in [row[:3] for row in page.rows("encoding", "n")]
    assert {row[2] for row in page.rows("experiment", "found")} == {"-"}  # nothing is broken


def test_pictures_are_as_they_are_or_left_out(tmp_path, monkeypatch):
    whole = next((ROOT / "docs" / "results").rglob("*.png")).read_bytes()
    (tmp_path / "whole.png").write_bytes(whole)
    (tmp_path / "cut.png").write_bytes(whole[:-20])
    source, fault = picture(tmp_path / "whole.png")
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == whole and not fault
    assert picture(tmp_path / "cut.png") == ("", "broken: not a complete PNG file")
    assert "No such file" in picture(tmp_path / "none.png")[1]
    monkeypatch.setattr(html, "LARGEST", len(whole) - 1)
    source, fault = picture(tmp_path / "whole.png")
    assert not source and re.match(r"left out: 0\.\d MiB is too large", fault)


def test_texts_with_tables(tmp_path):
    """Within a line, text is text: no emphasis, link, entity or tag."""
    table = "| a | b\\|c |\n|---|:-:|\n| 1,000 |  |\n| x | [y](z) `*&amp;* |"
    text = f"# Title\n\nsome\nwords\n\n{table}\n\n    <b>x</b>\n\n      y\n\n* one\n* two\n"
    given = {"about": [], "overview": [text], "sections": []}
    path = tmp_path / "page.html"
    path.write_text(shown := html.page(html.TEMPLATES / "page.html", "p", "t", **given))
    page = Page(path)
    assert page.tables == [[["a", "b|c"], ["1,000", ""], ["x", "[y](z) `*&amp;*"]]]
    assert '<td class="number">1,000</td>' in shown and "<b>" not in shown
    assert "<b>x</b>\n\n  y\n" in page.text and "<li>one</li>" in shown
    assert has_table(text) and not has_table("a | b")


def test_what_cannot_be_reported_is_refused(results, tmp_path, capsys):
    out = tmp_path / "report"

    def refused(folder, message):
        with pytest.raises(SystemExit, match=message):
            main([str(folder), "--out", str(out)])

    (tmp_path / "empty").mkdir()
    refused(tmp_path / "missing", "^error: .*missing is not a folder: give folders with results")
    refused(
        tmp_path / "empty", "^error: no results in .*empty: to create the first, run TYPE=adape"
    )
    assert not out.exists()
    out.mkdir()
    (out / "index.html").write_text("my own page")
    refused(
        results,
        r"^error: --out .*report is neither empty nor a report \(index.html\)",
    )
    assert (out / "index.html").read_text() == "my own page"
    (out / "index.html").unlink()
    main([str(results), "--out", str(out)])
    first = (out / "index.html").stat().st_ino
    main([str(results), "--out", str(out)])  # a report may be made again
    assert (out / "index.html").stat().st_ino != first
    (out / "notes.txt").touch()
    refused(results, r"is neither empty nor a report \(index.html, notes.txt\)")


def test_a_report_among_the_results_is_not_read(results, tmp_path):
    output = tmp_path / "output"
    make_run(output / "run")
    shutil.copytree(output / "run", output / "report" / "run")
    with pytest.raises(SystemExit, match="is neither empty nor a report"):
        main([str(output), "--out", str(output / "report")])
    shutil.rmtree(output / "report")
    for _ in range(2):
        main([str(output), "--out", str(output / "report")])
    page = Page(output / "report" / "index.html")
    assert page.rows("experiment", "found")[0][1] == "runs: 1"


CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def opened(tmp_path):
    """Opens the report in the system's browser; notes what the page says and asks for."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip(f"no browser is installed ({', '.join(CHROMIUM)}); $CHROMIUM may name one")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        said = []

        def opened(width, scheme="light"):
            view = {"width": width, "height": 900}
            page = browser.new_page(viewport=view, color_scheme=scheme, is_mobile=width < 600)
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("request", lambda request: said.append(request.url))
            page.goto((tmp_path / "report" / "index.html").as_uri())
            return page

        yield opened
        browser.close()
    assert [url for url in said if not url.startswith(("file:", "data:"))] == []


BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_in_a_browser(results, report, opened):
    report(results)
    colours = {}
    for width, scheme in ((1280, "light"), (390, "dark"), (390, "light")):
        page = opened(width, scheme)
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert page.evaluate("document.images.length") == 6
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        wide = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > innerWidth)"
        assert page.evaluate(wide) == (width == 390)
        colours[scheme] = page.evaluate(BACKGROUND)
    assert colours["light"] != colours["dark"]
    page.click("#theme")
    assert page.evaluate(BACKGROUND) == colours["dark"]


def test_titles_sort_in_a_browser(results, report, opened):
    report(results)
    page = opened(1280)
    table = page.locator("#arithmetic table").filter(has_text="beyond them").first
    title = table.locator("th").nth(3)

    def values():
        cells = table.locator("td:nth-child(4)").all_inner_texts()
        return [float(re.match(r"[\d.]+", cell)[0]) for cell in cells]

    before = values()
    assert len(set(before)) > 2
    title.locator("button").click()
    assert values() == sorted(before)
    title.locator("button").click()
    assert values() == sorted(before, reverse=True)
    assert title.get_attribute("aria-sort") == "descending"
    page.click("#pretraining > .wide th:first-child button")
    runs = page.locator("#pretraining > .wide td:first-child").all_inner_texts()
    names = [Path(name).name for name in runs]
    assert names.index("run_9") < names.index("run_10")


RESULTS = Path(__file__).parents[1] / "docs" / "results"
SAVED = sorted(path.parent for path in RESULTS.glob("*/settings.json"))


@pytest.mark.parametrize("folder", SAVED, ids=lambda folder: folder.name)
def test_rows_without_their_table_are_shown(folder):
    runs = read_saved(folder)
    tables = tables_of(runs)
    assert all(map(has_table, tables))
    tasks = {asked.get("task") for run in runs for asked in run.asked.values()}
    assert len(tables) == (len(tasks) or 1)
