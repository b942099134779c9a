"""The page of all results: what it shows, and that nothing on it is run or loaded."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from tape import provenance
from tape.results.report import MARK, main

ROOT = Path(__file__).parent.parent
PICTURE = min((ROOT / "docs" / "results").rglob("*.png"))
EVIL = "<script>alert(1)<script>"  # the name of a folder has no slash
TABLE = "| encoding | n |\n|---|---|\n| rope | 3 |\n"


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


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def output(tmp_path):
    """Two runs and a comparison, whose texts would like to be parts of the page."""
    output = tmp_path / "output"
    write(output / "half" / "run.json", "{")
    write(output / EVIL / "run.json", "{}")
    text = "# r\n\nsaid\n\n    <b>&amp; more</b>\n\n[y](z) \x1b[2J\u202eb\n"
    write(output / EVIL / "report" / "report.md", text)
    write(output / EVIL / "report" / "loss.png", PICTURE.read_bytes())
    provenance.record(output / EVIL)
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
    page = report(output, output / EVIL)
    assert page.tables == [[["encoding", "n"], ["rope", "3"]]] and "the table" in page.text
    assert page.tags.count("li") == 1 and f"\n{output / 'half'}\n" in page.text
    assert page.tags.count("a") == page.tags.count("section") == len(page.sources) == 2
    (origin,) = provenance.read(output / EVIL)
    for value in (origin["command"], origin["machine"], str(origin["commit"])):
        assert value in page.text
    assert {"script", "b", "i", "link", "iframe"}.isdisjoint(page.tags)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    for text in (EVIL, "<b>&amp; more</b>", "[y](z) \N{REPLACEMENT CHARACTER}[2J"):
        assert text in page.text


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
