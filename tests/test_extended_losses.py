"""Losses by position of documents read beyond the trained length: rows, table and picture."""

import math

import pandas as pd
import pytest
from commands import ROOT
from scipy.stats import t

from tape.analysis.extended_losses import (
    LONGEST,
    PARTS,
    by_length,
    complete,
    gathered,
    publish,
    table,
)

RESULTS = ROOT / "docs" / "results" / "smollm2_free"
BINS = {4096: (3444, 4095), 8192: (6889, 8191), 13777: (11585, 13776), 16384: (13777, 16383)}
LOSSES = {"a.py": 2.0, "b.txt": 2.5, "c.txt": 2.25}
METHODS = {"": 0.0, "yarn 2": -0.5, "ntk 2": -0.25, "ntk 1.682": -0.125}


def write(folder):
    """Results as the script's: the loss of a document, more at later positions, less by a method,
    and less by dca in one document."""
    (folder / "losses").mkdir()
    for number, (name, loss) in enumerate(LOSSES.items()):
        rows = []
        for method, change in METHODS.items():
            length = 13777 if method == "ntk 1.682" else LONGEST
            for place, (first, last) in enumerate(BINS.values()):
                if last < length:
                    nll = loss + place + change * (1 + number)
                    rows.append([method, length, first, last, last - first + 1, nll])
        columns = ["extend", "length", "first", "last", "tokens", "nll"]
        made = pd.DataFrame(rows, columns=columns)
        made.to_csv(folder / "losses" / f"{name}_by_position.csv", index=False)


def test_dynamic_ntk_has_the_factor_of_each_length(tmp_path):
    write(tmp_path)
    rows = gathered(tmp_path)
    assert {*PARTS} == {*BINS} and len(rows) == 3 * (3 * 4 + 3)
    values = by_length(rows).set_index(["row", "seed", "length"])["value"]
    for place, (length, same) in enumerate({4096: 0, 8192: 0, 13777: -0.125, 16384: -0.25}.items()):
        assert values["dynamic ntk", "b.txt", length] == 2.5 + place + 2 * same
        assert values["none", "c.txt", length] == 2.25 + place
    assert len(values) == 3 * 4 * 4 and "ntk 1.682" not in values.index.unique("row")


def test_methods_are_compared_by_document(tmp_path):
    write(tmp_path)
    lines = [line.strip("| ").split(" | ") for line in table(gathered(tmp_path)).splitlines()]
    assert [line[0] for line in lines[2:]] == ["none", "yarn 2", "dynamic ntk", "ntk 2"]
    # YaRN's differences are -0.5, -1 and -1.5: of mean -1 and standard deviation 0.5.
    half = t.ppf(0.975, 2) * 0.5 / math.sqrt(3)
    p = 3 * 2 * t.sf(1 / (0.5 / math.sqrt(3)), 2)  # Holm, of three methods
    assert lines[3][8] == f"-1.000 ± {half:.3f} (p {p:.2g})"
    mean = sum(LOSSES.values()) / 3 + 3 - 1
    assert lines[3][4].startswith(f"{mean:.3f} ± ")


def test_documents_count_when_all_methods_have_read_them(tmp_path):
    write(tmp_path)
    rows = gathered(tmp_path)
    part = rows[(rows["document"] != "b.txt") | (rows["method"] != "yarn 2")]
    assert {*complete(part)["document"]} == {"a.py", "c.txt"}


def test_rows_a_table_and_a_picture_are_written(tmp_path):
    write(tmp_path)
    publish(str(tmp_path), str(tmp_path / "docs"))
    written = pd.read_csv(tmp_path / "docs" / "losses.csv")
    pd.testing.assert_frame_equal(written, gathered(tmp_path))
    assert (tmp_path / "docs" / "table.md").read_text() == f"{table(written)}\n"
    assert (tmp_path / "docs" / "losses.png").stat().st_size > 1000
    with pytest.raises(ValueError, match=r"has no losses by position: run bash script/smollm2_fre"):
        gathered(tmp_path / "docs")


def test_the_page_has_the_numbers_of_the_rows():
    page = (ROOT / "docs" / "context_extension.md").read_text()
    loss = pd.read_csv(RESULTS / "choice.csv").set_index("extend")["nll"]
    for factor in (2, 4):
        assert f"| {factor} | {loss[f'yarn {factor}']:.3f} |\n" in page
    rows = pd.read_csv(RESULTS / "losses.csv", keep_default_na=False)
    rows = rows[rows["document"] == "bottle.py"]
    nll = rows.set_index(["first", "method"])["nll"]
    for first, last in ((6889, 8191), (11585, 13776), (13777, 16383)):
        without, yarn = nll[first, "none"], nll[first, "yarn 2"]
        assert f"| {first:,} to {last:,} | {without:.2f} | {yarn:.2f} |\n" in page
    documents = pd.read_csv(RESULTS / "documents.csv")
    assert documents["kind"].value_counts().to_dict() == {"code": 4, "prose": 4}
