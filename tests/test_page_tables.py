"""Tables of pages that no command prints as they stand: their cells are those of the rows."""

from itertools import product

import pandas as pd
from test_docs import RESULTS, ROOT

from tape.evaluation.tables import markdown_table
from tape.results import differences, load
from tape.settings.groups import ABLATIONS
from tape.statistics import weighted_mean

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
    near, worse = {"t5": 0.12, "fox": 0.08, "kerple": 0.09}, {"selective": 0.12, "repo": 0.04}
    assert "KERPLE** cannot be told from FIRE (0.12, 0.08 and 0.09 nats would be, uncorr" in text
    assert "most 0.017) and cannot be told from it at the trained one (corrected p 0.22;" in text
    assert "twice that (p at most 0.044) and cannot be told from it at four times (0.12 and" in text
    assert "All seven are worse than FIRE at all three lengths (p at most 0.031)" in text
    for (encoding, baseline, length), x in found.items():
        is_near, is_worse, far = encoding in near, encoding in worse, length == 1024
        if baseline == "fire" and is_near:
            assert x["p"] > 0.05 and x["detectable"] < near[encoding] + 0.005
        elif baseline == "fire":
            assert x["mean"] > 0 and x["p"] < 0.0315
        elif is_worse and far:
            assert x["p"] > 0.05 and x["detectable"] < worse[encoding] + 0.005
        elif is_worse:
            assert x["mean"] > 0 and x["p"] < 0.0445
        elif not is_near and far:
            assert x["mean"] < 0 and x["p"] < 0.0175
        elif not is_near and length == 256:
            assert round(x["p"], 2) == 0.22 and x["detectable"] < 0.075


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
