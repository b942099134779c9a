"""The page of all results: what it shows, what it lists as unfinished or damaged, and that nothing
on it is run or loaded."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tape import provenance
from tape.results.report import MARK, main

ROOT = Path(__file__).parent.parent
PICTURE = min((ROOT / "docs" / "results").rglob("*.png"))
EVIL = "<script>alert(1)<script>"  # the name of a folder has no slash
TABLE = "| encoding | n |\n|---|---|\n| rope | 3 |\n"
SETTINGS = {
    "seed": 3,
    "task": {"_target_": "tape.training.text.TextTask"},
    "position": {"name": "tape"},
    "trainer": {"max_steps": 20},
}


class Page(HTMLParser):
    """The tables of a page as text, its text, tags and sources of pictures."""

    def __init__(self, path):
        super().__init__()
        self.tables, self.text, self.sources, self.tags, self.cell = [], "", [], [], False
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag == "img":
            self.sources.append(dict(attributes)["src"])
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        self.cell &= tag not in ("td", "th")

    def handle_data(self, data):
        self.text += data
        if self.cell:
            self.tables[-1][-1][-1] += data

    def rows(self, *head):
        """The rows of the tables whose first titles these are."""
        return [row for t in self.tables if t[0][: len(head)] == [*head] for row in t[1:]]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def make_run(folder, settings=SETTINGS, steps=20, reported=True, text="# run\n\nhere\n"):
    metrics = [{"step": n, "loss": 8.0 / n} for n in range(5, steps + 1, 5)]
    write(folder / "run.json", json.dumps(settings))
    write(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in metrics))
    if reported:
        summary = {"parameters": 1234567, "steps": steps, "tokens_per_second": 900.5}
        write(folder / "report" / "report.json", json.dumps(summary))
        write(folder / "report" / "report.md", text)
        write(folder / "report" / "loss.png", PICTURE.read_bytes())
        provenance.record(folder)


@pytest.fixture
def output(tmp_path):
    """A run and a comparison, whose texts would like to be parts of the page."""
    output = tmp_path / "output"
    make_run(output / EVIL, text="# r\n\nsaid\n\n    <b>&amp; more</b>\n\n[y](z) \x1b[2J\u202eb\n")
    make_run(output / "lora", SETTINGS | {"peft": {"name": "lora"}})
    write(output / "compared" / "table.md", f"the table\n\n{TABLE}")
    write(output / "compared" / "curves.png", PICTURE.read_bytes())
    write(output / "code" / "train.py", "")
    return output


@pytest.fixture
def report(tmp_path, capsys):
    def report(*folders):
        main([*map(str, folders), "--out", str(tmp_path / "report")])
        (file,) = (tmp_path / "report").iterdir()
        assert str(file) in capsys.readouterr().out
        return Page(file)

    return report


def test_the_page_shows_what_the_folders_hold(output, report):
    """And nothing that was read becomes a part of it."""
    page = report(output, output / "lora")
    head = ("run", "encoding", "method", "seed", "steps", "parameters", "tokens/s", "loss")
    run, lora = page.rows(*head)
    assert run[1:] == ["tape", "", "3", "20", "1,234,567", "900.5", "0.4000"]
    assert lora[1:4] == ["tape", "lora", "3"]
    assert page.rows("encoding", "n") == [["rope", "3"]] and "the table" in page.text
    assert len(page.sources) == 3  # two are of losses
    assert page.tags.count("a") == page.tags.count("section") == 3
    (origin, *_) = provenance.read(output / "lora")
    for value in (origin["command"], origin["machine"], str(origin["commit"])):
        assert value in page.text
    assert not page.rows("place", "state", "why")
    assert {"script", "b", "i", "link", "iframe"}.isdisjoint(page.tags)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    for text in (EVIL, "<b>&amp; more</b>", "[y](z) \N{REPLACEMENT CHARACTER}[2J"):
        assert text in page.text


def longer(folder, steps):
    """Continued to 40 steps and stopped: the numbers that are there are of 20 steps."""
    make_run(folder)
    write(folder / "run.json", json.dumps(SETTINGS | {"trainer": {"max_steps": 40}}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": steps, "loss": 1.0}) + "\n")


def begun_evaluation(folder):
    rows = ({"shard": "1/1", "batches": 3}, {"batch": 1})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    write(folder / "shard-1-of-1" / "parts.jsonl", text)


def half_a_run(folder):
    make_run(folder, steps=10, reported=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 15, "lo')


def damaged(folder, name, text):
    make_run(folder)
    write(folder / name, text)


FAULTS = {
    "half": (half_a_run, "unfinished", "10 of 20 steps are done: the same command continues"),
    "going": (lambda f: longer(f, 30), "unfinished", "30 of 40 steps are done: the same"),
    "there": (lambda f: longer(f, 40), "unfinished", "40 of 40 steps are done, but not reported"),
    "no_config": (
        lambda f: damaged(f, "run.json", '{"seed": 3, "tra'),
        "damaged",
        r"run\.json is damaged",
    ),
    "odd_report": (
        lambda f: damaged(f, "report/report.json", "[3]"),
        "damaged",
        r"report\.json",
    ),
    "grid": (begun_evaluation, "unfinished", "2 of 3 batches are missing"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_unfinished_or_damaged_is_listed(output, report, name):
    make, state, why = FAULTS[name]
    make(output / name)
    page = report(output)
    ((place, found, reason),) = page.rows("place", "state", "why")
    assert (place, found) == (str(output / name), state) and re.match(f".*{why}", reason), reason
    rows = {Path(row[0]).name: row for row in page.rows("run")}
    assert EVIL in rows and "lora" in rows  # the others are as they were
    assert "1,234,567" not in rows.get(name, ())  # no numbers of an earlier report


def test_what_cannot_be_reported_is_refused(output, tmp_path):
    out = tmp_path / "report"

    def refused(folder, message):
        with pytest.raises(SystemExit, match=message):
            main([str(folder), "--out", str(out)])

    (tmp_path / "empty").mkdir()
    message = "^error: no results in .*empty: to create the first, run tape train"
    refused(tmp_path / "empty", message)
    assert not out.exists()
    write(out / "index.html", "my own page")
    refused(output, r"^error: --out .*index\.html contains something else")
    write(out / "index.html", f"<html>{MARK}")  # a report may be made again
    main([str(output), "--out", str(out)])
    assert MARK in (out / "index.html").read_text()
