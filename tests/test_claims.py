"""Numbers in the documents about results are those of the committed rows."""

import json
import re
from itertools import combinations, product
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest
import torch
from pages import RESULTS, ROOT, blocks, check_shown, page, said, table_of
from scipy.stats import t, ttest_1samp
from test_tables import BASES, CONTRASTS, ONE_RATE, VARIANTS

from tape.cli.settings.groups import ABLATIONS
from tape.core.statistics import (
    exchange_p,
    per_seed,
    sign_flip_p,
    smallest_detectable,
    student,
    weighted_mean,
)
from tape.encodings import ENCODINGS
from tape.model.configuration import TapeConfig
from tape.model.modeling import TapeForCausalLM
from tape.results import differences, load
from tape.results.runs import read_saved
from tape.tasks.synthetic.suite import rows_of
from tape.tasks.synthetic.synthetic_task import FOLDER


def test_the_lowest_losses_on_bigrams_are_those_of_the_page(capsys):
    (code,) = blocks(ROOT / "docs" / "text.md", "python")
    exec(compile(code, "text.md", "exec"), {})
    assert capsys.readouterr().out.strip() in page("text")


def losses(results, length, *runs):
    """Losses on windows of a length, by row and seed."""
    rows = load([RESULTS / results], only=runs or ["*"])
    rows = rows[(rows["measure"] == "loss") & (rows["length"] == length) & rows["first"].isna()]
    return per_seed(rows)


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


def test_pooled_differences_of_tape_and_rope():
    """Of experiments with the same settings and evaluation, each encoding at its own rate."""
    own = "contextual_text_rope_learning_rate_0.032_*", "contextual_text_tape_learning_rate_0.016_*"
    for length in (256, 1024):
        first, more = losses("text", length), losses("contextual_text", length, *own)
        more.index = more.index.map(lambda x: (x[0].split()[0], x[1]))
        five, six = ([*(values["tape"] - values["rope"])] for values in (first, more))
        told = []
        for pairs in (five, six, five + six):
            p, exact = ttest_1samp(pairs, 0).pvalue, sign_flip_p(pairs)
            told.append((f"{mean(pairs):+.3f} ± {student(pairs):.3f}", f"{p:.2g}", f"{exact:.2g}"))
        assert [len(five), len(six)] == [5, 6]
        if length == 256:
            (of_five, *_), (of_six, *p_six), (of_all, *p_all) = told
            assert [of_five, of_six, of_all] == SIGNED
            assert f"| six more pairs | {of_six} | {p_six[0]} | {p_six[1]} |" in said("text")
            assert f"| all eleven pairs | {of_all} | {p_all[0]} | {p_all[1]} |" in said("text")
            for name in ("findings", "choosing", "replication"):
                check_shown(name, of_all)
            check_shown("findings", of_six, p_six[0], p_all[1])
        else:
            five_here, _, (all_here, *_) = told
            limit = smallest_detectable(stdev(five + six) / 11**0.5, 10)
            check_shown("text", five_here[0], all_here, f"{limit:.2f}")
            check_shown("findings", all_here)
    four, rope = losses("bigrams", 512), losses("contextual", 512, "contextual_0.064_rope_*")
    tape = losses("contextual", 512, "contextual_tape_1?")
    four = [*(four["tape"] - four["rope trainer.learning_rate=0.064"])]
    six = [*(tape.droplevel("row") - rope.droplevel("row"))]
    form = [
        f"{mean(x):.{n}f} ± {student(x):.{n}f}" for x, n in ((four, 2), (six, 2), (four + six, 3))
    ]
    check_shown("text", *form)
    check_shown("findings", form[2])


SIGNED = ["-0.031 ± 0.029", "-0.023 ± 0.022", "-0.026 ± 0.014"]  # five, six, eleven pairs

LOSS, FAR, KEYS = ("loss", 256), ("loss", 512), ("accuracy", 512)
LOW, HIGH = {"only": ["*_0.016_*"]}, {"only": ["*_0.032_*"]}
MAIN, AT_008 = {"only": ["contextual_[rt]*"]}, {"only": ["*_0.008_*"]}
TABLES = {name: [f"ablation_{x}_1*" for x in rows] for name, rows in ABLATIONS.tables.items()}
WIDTHS = {"only": TABLES["width"]}
MAPS = {"only": [f"{x[:-1]}[0-5]" for x in TABLES["equivariance"]]}
BOTH = "tape equivariant=True tensorial=True"
ALONE = "tape {}=False".format
TEXT, PARTS = "contextual_text", "contextual"
LONG, NEEDLE, BEYOND = ("loss", 1024), ("accuracy", 64), ("accuracy", None)
VARIED = {"only": VARIANTS}
NOTES = "lab_notebook/state"
OF_LAYERS = ["rope", ALONE("attention"), ALONE("feed_forward")]
SUBSET = ["tape sampler=subset"]
ONE, SPAN = "{0:.2f}", "{low:.2f} to {high:.2f}"
# A page, its number, the rows, their baseline, measure and length, and whom it is about.
DETECTABLE = [
    ("replication", SPAN, TEXT, LOW, "tape", LOSS, OF_LAYERS),
    ("replication", "{0:.2f}", "ablations", MAPS, BOTH, LOSS, ...),
    ("replication", "{1:.2f}", "ablations", MAPS, BOTH, LOSS, ...),
    ("replication", "{2:.2f}", "ablations", MAPS, BOTH, LOSS, ...),
    ("findings", ONE, "ablations", MAPS, BOTH, LOSS, ...),
    ("replication", SPAN, "ablations", WIDTHS, "tape width=None", LOSS, ...),
    ("findings", SPAN, "ablations", WIDTHS, "tape width=None", LOSS, ...),
    ("findings", ONE, TEXT, LOW, "rope", LOSS, ["tape"]),
    ("state", SPAN, TEXT, LOW, "rope", LOSS, ...),
    ("state", SPAN, TEXT, HIGH, "rope", LOSS, ...),
    (NOTES, ONE, PARTS, MAIN, "tape", FAR, [ALONE("attention")]),
    ("findings", ONE, PARTS, MAIN, "tape", FAR, [ALONE("attention")]),
    (NOTES, ONE, PARTS, MAIN, "tape", FAR, [ALONE("magnitudes")]),
    (NOTES, ONE, PARTS, AT_008, "tape", FAR, [ALONE("feed_forward")]),
    ("state", "{low:.0f} to {high:.0f}", "contextual_needle", {}, "rope", NEEDLE, ...),
    ("context_extension", "{0:.3f}", "extension", {}, "lora", LONG, ["adape_lora"]),
    ("context_extension", "{0:.0f}", "extension", {}, "lora", KEYS, ["adape_lora"]),
    ("context_extension", "{0:.0f}", "bases", BASES, "adape", KEYS, ["lora"]),
    ("findings", "{0:.0f}", "bases", BASES, "adape", KEYS, ["lora"]),
    ("lab_notebook/addition", "{0:.1f}", "addition", VARIED, "randpe", BEYOND, SUBSET),
]


@pytest.mark.parametrize(
    ("name", "number", "results", "chosen", "baseline", "what", "compared"), DETECTABLE
)
def test_detectable_differences(name, number, results, chosen, baseline, what, compared):
    """At the level corrected for all rows that are compared with the baseline."""
    rows, (measure, length) = load([RESULTS / results], **chosen), what
    rows = rows[rows["measure"] == measure]
    if what is BEYOND:
        rows = rows[rows[["first_digits", "second_digits"]].max(axis=1) > 5]
    else:
        whole = rows["first"].isna() if measure == "loss" else True
        rows = rows[(rows["length"] == length) & whole]
    limits = differences(rows, baseline)["detectable"]
    limits = sorted(limits if compared is ... else limits[compared])
    limits = [x * (1 if measure == "loss" else 100) for x in limits]
    check_shown(name, number.format(*limits, low=limits[0], high=limits[-1]))


def test_three_bases_do_not_detect_what_norms_lack():
    rows = load([RESULTS / "bases"], **BASES)
    rows = rows[(rows["measure"] == "accuracy") & (rows["length"] == 512)]
    assert differences(rows, "adape")["detectable"]["norms"] > 1
    check_shown("context_extension", "100 points")


def test_no_pair_of_encodings_is_told_apart_by_pass_keys():
    rows = load([RESULTS / "passkey"])
    rows = rows[(rows["measure"] == "accuracy") & (rows["length"] == 256)]
    values = weighted_mean(rows, ["row", "seed"])
    pairs = [values[x] - values[y] for x, y in combinations(rows["row"].unique(), 2)]
    check_shown("retrieval", f"{len(pairs)} tests", "100 points")
    assert min(smallest_detectable(x.sem(), 2, tests=len(pairs)) for x in pairs) > 1
    assert f"{min(ttest_1samp(x, 0).pvalue for x in pairs):.2f}" == "0.05"


def test_models_within_three_layers_or_two():
    """Attention far away, and after BOS tokens; figures that no table of differences has."""
    rows = pd.read_csv(RESULTS / "visualize" / "attention.csv").query("layer > 1")
    rows = rows.assign(seed=rows["model"].str[-1], value=100 * rows["beyond_a_quarter"], n=1)
    far = [differences(own, "rope").loc["tape"] for _, own in rows.groupby("layer")]
    told = [f"{x['mean']:.0f} ± {x['half_width']:.0f}" for x in far]
    for name in ("replication", "findings"):
        check_shown(name, *told)
    layers = rows.pivot(columns="row", index=["layer", "seed"], values="value")
    errors = (layers["tape"] - layers["rope"]).groupby("layer").sem()
    limits = sorted(smallest_detectable(x, 2, tests=3) for x in errors)
    for name in ("replication", "findings"):
        check_shown(name, f"{limits[0]:.0f} to {limits[-1]:.0f}")
    rows = pd.read_csv(RESULTS / "stability" / "stability.csv")
    rows = rows.query("move == 'bos' and by == 3 and dtype == 'float32' and layer in (2, 4)")
    rows = rows.assign(seed=rows["model"].str[-1])
    layers = rows.pivot(columns="row", index=["layer", "seed"], values="attention")
    more = layers["tape equivariant=False"] - layers["tape equivariant=True"]
    limits = [smallest_detectable(x, 2, tests=2) for x in more.groupby("layer").sem()]
    check_shown("replication", f"{limits[0]:.0f} and {limits[1]:.0f}")


SHAPES = {"text": "text", "bigrams": "bigrams", "pass keys": "passkey", "addition": "addition"}
SHAPES |= {"synthetic tasks": "tasks"}


def test_how_large_the_models_are():
    sizes = {}
    for told, folder in SHAPES.items():
        common = json.loads((RESULTS / folder / "settings.json").read_text())["common"]
        shape = {key[6:]: value for key, value in common.items() if key.startswith("model.")}
        del shape["attn_implementation"]
        with torch.device("meta"):
            config = TapeConfig(**shape, vocab_size=common["vocab_size"], position={"name": "rope"})
            sizes[told] = TapeForCausalLM(config).num_parameters() / 1e6
        line = rf"\| \[{told}\]\(\S+\) \| {sizes[told]:.2f} million \|"
        assert re.search(line, said("leaderboard")), told
    for name in ("leaderboard", "findings", "choosing", "../README"):
        check_shown(name, f"{min(sizes.values()):.1f} to 2.2")  # some encodings have weights


def test_times_on_a_gpu_stand_beside_those_on_a_cpu():
    cells = pd.read_csv(ROOT / "docs" / "leaderboard.csv", index_col=["column", "encoding"])
    for name, told in (("step time, H100", "h100/train"), ("decoding time, H100", "h100/decode")):
        (rows,) = (RESULTS / told).glob("*.csv")
        seconds = pd.read_csv(rows).pivot(columns="method", index="round", values="seconds")
        ratios = seconds.div(seconds["rope"], axis=0).median().drop("llama")
        assert cells["value"].loc[name].to_dict() == pytest.approx(ratios.to_dict(), rel=1e-6)
    gpu = cells["value"]["step time, H100"].map("{:.2f}".format)
    cpu = cells["value"]["step time, CPU"].map("{:.2f}".format)
    check_shown("choosing", gpu["alibi"], cpu["fox"], gpu["fox"])


def test_the_page_of_choices():
    names = ["fire", "t5", "fox", "kerple", "alibi"]
    for length in (256, 1024):
        values = pd.concat([losses("text", length), losses("text_more", length)])
        shown = [f"{(values[name] - values['rope']).mean():.2f}" for name in names]
        assert f"| {' | '.join(shown)} |" in page("choosing")
    rows = load([RESULTS / "bases"], **BASES)
    rows = rows[(rows["measure"] == "accuracy") & (rows["length"] == 512)]
    keys = 100 * per_seed(rows).groupby("row").mean()
    check_shown("choosing", *(f"{keys[name]:.0f} %" for name in ("yarn", "lora", "adape")))
    check_shown("choosing", f"{differences(rows, 'adape')['p']['yarn']:.2f}")
    cells = pd.read_csv(ROOT / "docs" / "leaderboard.csv", index_col=["column", "encoding"])
    digits = cells["value"]["addition +1 digit, %"]
    check_shown("choosing", f"{digits['randpe']:.0f} %", f"{digits['nope']:.0f} %")
    assert digits[["rope", "tape"]].max() < 1 and cells["value"]["needle (32)"]["rope"] == 32
    needles = load([RESULTS / "tasks"], only=["*needle_fox_*", "*needle_stick_breaking_*"])
    whole = needles[(needles["measure"] == "accuracy") & (needles["length"] == 256)]
    solved = per_seed(whole) >= 0.9
    assert [*solved.groupby("row").sum()[["fox", "stick_breaking"]]] == [5, 4]
    for name in ("alibi", "fire", "t5", "fox", "kerple"):
        assert ("flash_attention_2" in ENCODINGS[name].backends) == (name == "alibi")
        assert "flex_attention" in ENCODINGS[name].backends


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

    def of(names, lengths=(256, 512, 1024), baseline="rope"):
        return [found[each] for each in product(names, [baseline], lengths)]

    far = (1024,)
    better = [("fox", "kerple"), ("grape_ap", "stick_breaking")]
    p_at_most = [(names, (256, 512, 1024)) for names in better]
    p_at_most += [(("t5",), far), (("learned", "sincos"), far), (("repo", "selective"), (256,))]
    p_at_most += [(("cope", "relative", "pope", "wall", "path", "carope"), far)]
    for names, lengths in p_at_most:
        check_shown("text", f"{max(x['p'] for x in of(names, lengths)):.2g}".rstrip("0"))
    detectable = [(("fope", "rope_gain", "repo", "selective"), far, "rope")]
    detectable += [(("learned", "sincos"), (256,), "rope")]
    for names, lengths, baseline in detectable:
        rows = of(names, lengths, baseline)
        assert min(x["p"] for x in rows) > 0.05
        check_shown("text", *(f"{x['detectable']:.2f}" for x in rows))
    for x in of(("learned", "sincos"), far):
        check_shown("text", f"{x['mean']:.2f} ± {x['half_width']:.2f}")


BETTER_FAR = ("cope", "relative", "pope", "wall", "path", "carope")
UNSEEN_OF_FIRE = {"t5": 0.28, "fox": 0.18, "kerple": 0.20}  # detectable
UNSEEN_FAR = {"fope": 0.13, "rope_gain": 0.28, "repo": 0.09, "selective": 0.27}


def test_verdicts_on_encodings_added_on_text():
    """What the page says of all these encodings, in its tables of verdicts, is true of each."""
    rows = load([RESULTS / "text", RESULTS / "text_more"])
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    added = load([RESULTS / "text_more"])["row"].unique()
    for length, own in whole.groupby("length"):
        of_rope, of_fire = (differences(own, baseline) for baseline in BASELINES)
        assert len(of_rope) == 23
        for encoding in added:
            x = of_fire.loc[encoding]
            unseen = x["p"] > 0.05 and round(x["detectable"], 2)
            if encoding in UNSEEN_OF_FIRE or (encoding == "relative" and length < 1024):
                assert unseen and unseen <= UNSEEN_OF_FIRE.get(encoding, 0.27)
            else:
                assert x["mean"] > 0 and x["p"] < 0.0435
            x = of_rope.loc[encoding]
            unseen = x["p"] > 0.05 and round(x["detectable"], 2)
            if encoding in UNSEEN_FAR and length == 1024:
                assert unseen == UNSEEN_FAR[encoding]
            elif encoding in ("fope", "rope_gain"):
                assert unseen
            elif encoding in ("repo", "selective") and length == 256:
                assert x["mean"] > 0 and x["p"] < 0.0345
            elif encoding in ("learned", "sincos"):
                limit = {"learned": 0.14, "sincos": 0.13}[encoding]
                assert unseen == limit if length == 256 else x["mean"] > 0 and x["p"] < 0.00505
            elif encoding in ("grape_ap", "stick_breaking"):
                assert x["mean"] < 0 and x["p"] < 0.00845
            elif encoding in ("fox", "kerple"):
                assert x["mean"] < 0 and x["p"] < 0.00285
            elif encoding in BETTER_FAR and length == 1024:
                assert x["mean"] < 0 and x["p"] < 0.0245
            elif encoding in BETTER_FAR and length == 256:
                assert x["p"] > 0.135 and 0.085 < x["detectable"] < 0.195


def test_bigrams_at_one_rate():
    rows = load([RESULTS / "bigrams_more", RESULTS / "bigrams"], **ONE_RATE)
    whole = rows[(rows["measure"] == "loss") & rows["first"].isna()]
    near, _, _, far = (differences(own, "rope") for _, own in whole.groupby("length"))
    first, at_512 = far.sort_values("mean").index[:6], whole[whole["length"] == 512]
    assert [*first] == ["wall", "stick_breaking", "fox", "kerple", "cope", "relative"]
    above = at_512.groupby("row")["value"].mean()[first] - 1.447
    behind = differences(at_512[at_512["row"].isin(first)], "wall")
    single = sorted(2 * t.sf(behind["mean"] / behind["half_width"] * t.ppf(0.975, 3), 3))
    alike = near.loc[first.drop("stick_breaking")]
    assert alike["p"].min() > 0.2 and 0.05 < far["p"]["t5"] < 0.055
    check_shown(
        "text",
        f"{far['mean'][first].max():.2f} to {far['mean'][first].min():.2f}",
        f"{above.min():.2f} to {above.max():.2f}",
        f"{behind['mean'].min():.3f} to {behind['mean'].max():.3f}",
        f"{single[0]:.2g} to {single[-2]:.2g}",
        f"{single[-1]:.2g}",
        f"{alike['detectable'].min():.3f} to {alike['detectable'].max():.3f}",
        f"{near['p']['stick_breaking']:.4f}",
        *(f"{far['p'][x]:.3f}" for x in ("wall", "fope", "grape_ap", "xpos", "learned", "sincos")),
        *(f"{far['mean'][name]:.2f}" for name in ("t5", "grape_ap")),
        *(f"{near['mean'][name]:+.2f}" for name in ("grape_ap", "randpe")),
    )
    for name in ("fope", "xpos", "learned", "sincos"):
        check_shown("text", f"{far['mean'][name]:.2f} ± {far['half_width'][name]:.2f}")
    for name in ("stick_breaking", "learned", "sincos"):
        check_shown("text", f"{near['mean'][name]:.3f} ± {near['half_width'][name]:.3f}")
    repo = whole[(whole["row"] == "repo") & (whole["length"] == 64)]["value"]
    check_shown("text", *map("{:.2f}".format, repo))
    each = at_512.pivot(columns="seed", index="row", values="value")
    below = (each.sub(each.loc["rope"]) < 0).all(axis=1)
    assert below[["t5", "kerple", "fox", "cope", "grape_ap", "learned", "sincos"]].all()
    assert (below.sum(), len(far)) == (18, 22)


def test_one_digit_more():
    cells = pd.read_csv(ROOT / "docs" / "leaderboard.csv", index_col=["column", "encoding"])
    cells = cells.loc["addition +1 digit, %"].round()
    assert [*cells["value"][["randpe", "nope", "fire", "alibi"]]] == [83, 82, 79, 53]
    assert [*cells["value"][["wall", "kerple", "t5", "fox", "cope"]]] == [75, 63, 16, 11, 2]
    assert cells["high"][["rope", "tape", "xpos"]].max() < 3
    least = ["stick_breaking", "fope", "carope", "relative", "learned"]
    assert cells["high"][least].max() < 1
    ranges = cells.loc[["wall", "kerple"], ["low", "high"]]
    assert ranges.to_numpy().tolist() == [[73, 77], [50, 88]]
    rows = load([RESULTS / "addition_more"])
    sizes = rows[["first_digits", "second_digits"]]
    known = weighted_mean(rows[sizes.max(axis=1) <= 5], ["row", "seed"])
    failed = known[known < 0.99]
    assert [*failed.index] == [("fox", 2), ("learned", 1)] and [*failed.round(2)] == [0.93, 0.88]
    longer = weighted_mean(rows[sizes.max(axis=1) == 6], ["row", "seed"]).unstack()
    of_three = longer.loc[["pope", "sincos", "rope_gain"]]
    assert [*of_three.max(axis=1).round(2)] == [0.19, 0.14, 0.10]
    assert ((of_three < 0.01).sum(axis=1) == 2).all()


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


def suite_runs(name):
    """A line for each run of the suite: task, encoding, whether it learned, how far it solves
    the task, at which step it reached the criterion, and its `Run`."""
    runs = {run.folder.name: run for run in read_saved(RESULTS / name)}
    rows = rows_of([*runs.values()]).drop_duplicates("run")
    lines = rows.set_index(rows["run"].map(lambda folder: Path(folder).name))
    steps = {key: run.asked[FOLDER]["criterion_step"] for key, run in runs.items()}
    return lines.assign(step=pd.Series(steps), of=pd.Series(runs))


@pytest.fixture(scope="module")
def tasks():
    return suite_runs("tasks")


def test_the_steps_that_the_suite_takes(tasks):
    """And the encodings that one rate serves, which four were tuned for."""
    known = tasks[tasks["learned"]]
    assert len(known) == 936 and known["step"].notna().all()
    cells = known.groupby(["encoding", "task"])["step"].agg(["median", "min", "max"])
    shown = cells.apply("{0[median]:.0f} ({0[min]:.0f} to {0[max]:.0f})".format, axis=1).unstack()
    heads, _, *rows = table_of("lab_notebook/suite", "step of the criterion")
    assert len(rows) == 7 and len(heads) == 9
    for encoding, *found in rows:
        assert found == [*shown.loc[encoding, heads[1:]]]
    medians = cells["median"].unstack()["flip_flop"]
    assert (medians[["rope", "fire", "nope"]] == [300, 300, 500]).all()
    assert tasks["encoding"].nunique() == 26


def test_failed_runs_of_the_suite_that_solve_longer_problems(tasks):
    failed = tasks[~tasks["learned"]]
    longer = failed[failed["solved"] > failed["trained"]]
    assert (len(failed), (failed["solved"] >= failed["trained"]).sum()) == (40, 26)
    assert sorted(zip(longer["encoding"], longer["task"], longer["solved"], strict=True)) == [
        ("fire", "copy", 11),
        ("fope", "sort", 11),
        ("fox", "reverse", 11),
        ("fox", "reverse", 11),
        ("randpe", "needle", 45),
        ("randpe", "selective_copy", 48),
    ]
    check_shown("lab_notebook/suite", "26 of the 40")
    p_values = {}
    for task, *pair in (words.split(":") for words in CONTRASTS["tasks"].split()[:2]):
        for zeroed in (True, False):
            lengths = tasks["solved"] * (tasks["learned"] | (not zeroed))
            both = [lengths[(tasks["task"] == task) & (tasks["encoding"] == x)] for x in pair]
            p_values[task, zeroed] = exchange_p(*map(list, both))
    assert {round(p, 4) for p in p_values.values()} == {0.0079}


def test_runs_of_the_suite_without_an_origin(tasks):
    bare = tasks[[not run.origin for run in tasks["of"]]]
    whole = bare.groupby("encoding").size() == tasks.groupby("encoding").size()
    names = ["alibi", "dape", "fire", "fox", "nope", "rope", "tapa", "tape", "wall"]
    assert (len(bare), len(tasks)) == (454, 976) and [*whole[whole].index] == names
    for text in (page("lab_notebook/suite"), (RESULTS / "tasks" / "table.md").read_text()):
        assert "454 of the 976 runs have no origin" in " ".join(text.split())


def test_repeated_seeds_of_the_suite(tasks):
    """On processors of the same name, at the commits of the rows or a later one."""
    repeated = suite_runs("tasks_repeated")
    _, _, *shown = table_of("lab_notebook/suite", "repeated run of flip-flops")
    lines = []
    for name, run in repeated.iterrows():
        first, (origin,) = tasks.loc[name], run["of"].origin
        assert origin["machine"] in ("AMD EPYC, AVX2, 2 cores", "AMD EPYC, 2 cores")
        assert first["of"].asked[FOLDER]["model"] != run["of"].asked[FOLDER]["model"]
        values = (f"{first[key]:.0f}, {run[key]:.0f}" for key in ("step", "solved"))
        encoding, commit = run["encoding"].split()[0], origin["commit"][:8]
        lines.append([f"{encoding}, seed {run['seed']}", commit, *values])
    assert sorted(lines) == sorted(shown)
    rows = pd.read_csv(RESULTS / "tasks_repeated" / "weights.csv").fillna("")
    for (steps, _), own in rows[rows["variable"] == ""].groupby(["steps", "position"]):
        assert own.groupby("commit" if steps == 1500 else "steps")["sha256"].nunique().max() == 1
        assert {*own["threads"]} == {1, 2} or {*own["position"]} == {"alibi"}
    short = rows[rows["steps"] == 30].drop_duplicates("variable").set_index("variable")["sha256"]
    others = {variable for variable in short.index if short[variable] != short[""]}
    assert others == {"ATEN_CPU_CAPABILITY=default", "MKL_CBWR=COMPATIBLE"}


def test_random_positions_with_tape_in_addition():
    rows = load([RESULTS / "addition"], only=["add_[rs]*"])
    sizes = rows[["first_digits", "second_digits"]]
    found = 100 * weighted_mean(rows[sizes.max(axis=1) == 6], ["row", "seed"]).unstack()
    means = found.mean(axis=1).round(1)
    variant = found.loc["tape sampler=subset"].round(1)
    assert (means["tape sampler=subset"], means["randpe"], len(variant)) == (85.2, 83.1, 6)
    assert (variant.min(), variant.max()) == (63.1, 94.1)
    check_shown("lab_notebook/addition", "85.2", "63.1 to 94.1", "83.1")
