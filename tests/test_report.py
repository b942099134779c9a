"""The page of all results: what it shows, and that nothing on it is run or loaded."""

import html
import re

import pytest
from commands import ROOT, tape

from tape import provenance
from tape.files import write_bytes, write_text
from tape.results.report import MARK

PICTURE = min((ROOT / "docs" / "results").rglob("*.png"))
EVIL = "<script>alert(1)<script>"  # the name of a folder has no slash
TABLE = "| encoding | n |\n|---|---|\n| rope | 3 |\n"


@pytest.fixture
def output(tmp_path):
    """Two runs and a comparison, whose texts would like to be parts of the page."""
    output = tmp_path / "output"
    write_text(output / "half" / "run.json", "{")
    for name in ("run", "trained"):
        write_text(output / EVIL / f"{name}.json", "{}")
        write_text(output / "longer" / f"{name}.json", f'"{name}"')  # goes on for more steps
    write_text(output / "longer" / "report" / "report.md", "of fewer steps")
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
    assert all(f"\n{output / name}\n" in text for name in ("half", "longer"))
    assert re.findall("<t[hd]>(.*)</t[hd]>", page) == ["encoding", "n", "rope", "3"]
    sources = re.findall(r'<img [^>]*src="(.{22})', page)
    assert sources == ["data:image/png;base64,"] * 2 and tags.count("img") == 2
    assert (tags.count("li"), tags.count("a"), tags.count("section")) == (2, 3, 3)
    (origin,) = provenance.read(output / EVIL)
    for value in (origin["command"], origin["machine"], str(origin["commit"])):
        assert value in text
    assert {"script", "b", "i", "link", "iframe"}.isdisjoint(tags)
    assert not re.search(r"<[^>]* on\w+=", page)
    for told in (EVIL, "<b>&amp; more</b>", "[y](z) \N{REPLACEMENT CHARACTER}[2J"):
        assert told in text


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
