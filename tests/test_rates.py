"""Learning rates chosen by validation loss."""

import pytest
from commands import tape
from conftest import composed
from omegaconf import OmegaConf
from results import add_metrics
from results import make_run as make

from tape.cli.settings.groups import CONFIG
from tape.core.files import write_text
from tape.results.rates import choices, draw, read_finished, table
from tape.results.runs import read_all

LOSSES = {"rope": (3.0, 2.5, 2.75), "tape": (2.9, 2.7, 2.6)}  # at RATES
RATES = (0.001, 0.002, 0.004)


def make_run(folder, encoding, rate, loss, seed=7, last=5, **others):
    """A run with this validation loss at the end."""
    make(folder, encoding, seed, trainer__learning_rate=rate, **others)
    add_metrics(folder, loss, last)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "eval_loss": 1.0}\n')
    return folder


@pytest.fixture
def runs(tmp_path):
    each = [(name, *x) for name, y in LOSSES.items() for x in zip(RATES, y, strict=True)]
    return [make_run(tmp_path / f"rates_{x[0]}_{x[1]}", *x) for x in each]


def test_a_rate_counts_with_all_seeds_only(runs, tmp_path):
    for rate, loss in ((0.001, 2.0), (0.004, 1.0)):
        runs.append(make_run(tmp_path / f"more_{rate}", "rope", rate, loss, seed=8))
    chosen = choices(read_all(runs, "", read_finished)[0])
    assert chosen.rates == {"rope": 0.004}
    assert table(chosen).splitlines()[2:4] == [
        "| rope | 2.5000 | - | 1.8750 | 0.004 * |",
        "| tape | - | - | - | - |",
    ]
    # Without one of its runs the highest rate cannot be chosen, but the other is the better one.
    runs[-2:] = [make_run(tmp_path / f"same_{x}", "rope", x, 3.5, seed=8) for x in RATES[:2]]
    chosen = choices(read_all(runs, "", read_finished)[0])
    assert chosen.rates == {"rope": 0.002} and chosen.at_boundary == {"rope"}


def test_command(runs, tmp_path, capsys):
    target, out = tmp_path / "config" / "text.yaml", tmp_path / "out"
    write_text(target, "fire: 25e-2\nrope: 0.5\n")
    tape("rates", *runs, "--out", out, "--into", target)
    assert OmegaConf.load(target) == {"fire": 0.25, "rope": 0.002, "tape": 0.004}
    printed = capsys.readouterr().out
    assert printed.startswith((out / "table.md").read_text())
    assert (out / "rates.png").is_file() and (out / "origin.json").is_file()
    # The saved rows give the same choice; runs that did not finish are named.
    early = make_run(tmp_path / "early", "alibi", 0.001, 2.0, last=4)
    with pytest.raises(SystemExit, match="error: 2 of 3 are not in the table"):
        tape("rates", out, early, tmp_path / "absent", "--out", tmp_path / "again")
    text, table = capsys.readouterr().out, (out / "table.md").read_text()
    assert text.startswith(table.rstrip()) and f"* {early}: " in text
    assert "no validation loss at its last step" in text


def test_what_cannot_be_chosen_from_is_refused(runs, tmp_path):
    def refused(message, encoding, **changes):
        other = make_run(tmp_path / f"{encoding}_{len(changes)}", encoding, 0.001, 2.0, **changes)
        out = tmp_path / "out"
        with pytest.raises(SystemExit, match=message):
            tape("rates", *runs, other, "--out", out, "--into", tmp_path / "rates.yaml")
        assert not out.exists()

    refused(r"eval_blocks: \(absent\) -> 9", "fire", eval_blocks=9)
    refused("were trained with different settings: vocab_size", "rope", vocab_size=5)
    refused("rope_0 is given twice, or is as another run", "rope")
    refused("one learning rate per name: rope, tape.*leave some", "tape", position__width=4)
    for text in ("name: rope\ntheta: 1000\n", "just notes\n", "- 1\n"):
        write_text(tmp_path / "rates.yaml", text)
        refused("rates.yaml contains something else: give another file", "nope")
        assert (tmp_path / "rates.yaml").read_text() == text


def test_rows_of_one_encoding_have_rates_of_their_own(runs, tmp_path, capsys):
    other = make_run(tmp_path / "wide", "tape", 0.001, 2.0, position__width=4)
    tape("rates", *runs, other, "--out", tmp_path / "out")
    assert capsys.readouterr().out.startswith((tmp_path / "out" / "table.md").read_text())


PARTS = {"rope": 0.064, "rope_gain": 0.008, "tape": 0.008, "tape attention=False": 0.016}
PARTS |= {"tape feed_forward=False": 0.008, "tape magnitudes=False": 0.016}
NEEDLE = {"fire": 0.01, "nope": 0.003, "rope": 0.003, "tape": 0.003}


@pytest.mark.parametrize(
    ("results", "count", "chosen", "page"),
    [
        ("rates_text", 82, "text", "results/rates_text/table"),
        ("rates_ladder_1", 34, "ladder_1", "results/rates_ladder_1/table"),
        ("rates", 33, "lengths", "results/rates/table"),
        ("bigrams_rates", 15, "bigrams", "results/bigrams_rates/table"),
        ("contextual_rates", 24, PARTS, "results/contextual_rates/table"),
        ("rates_copy", 27, "copy", "results/rates_copy/table"),
        ("rates_counting", 24, "counting", "results/rates_counting/table"),
        ("rates_bases", 14, "bases", "results/rates_bases/table"),
        ("rates_needle", 13, NEEDLE, "results/rates_needle/table"),
    ],
)
def test_the_table_in_the_docs_is_that_of_the_results(results, count, chosen, page):
    """`chosen` is in a file of config/rates, or in the page's command and copy.yaml."""
    docs = CONFIG.parent / "docs"
    runs, missing = read_all([docs / "results" / results], "")
    assert len(runs) == count and not missing
    assert table(choices(runs)).partition("\n\n")[0] in (docs / f"{page}.md").read_text()
    found = choices(runs).rates
    lines = [line for line in draw(choices(runs)).axes[0].get_lines() if line.get_label() in found]
    assert len({(x.get_color(), x.get_linestyle()) for x in lines}) == len(lines) >= len(found)
    file = CONFIG / "rates" / f"{chosen}.yaml"
    assert found == (OmegaConf.load(file) if isinstance(chosen, str) else chosen)


def test_runs_take_the_chosen_rates():
    """Synthetic tasks those of their family."""
    text = OmegaConf.load(CONFIG / "rates" / "text.yaml")
    for given, rate in (
        ("synthetic_adamw data=add position=nope", 1e-2),
        ("synthetic_adamw data=parity position=nope learning_rates.counting.nope=0.5", 0.5),
        ("synthetic_adamw data=copy position=t5", 3e-3),
        ("text position=rope", text.rope),
        ("text position=dape", 3.2e-2),
    ):
        assert composed(*f"experiment={given}".split()).trainer.learning_rate == rate
