"""Sweeps from training to the comparison, with tiny runs; the commands run in this process."""

import logging
import re
import shutil

import pytest
from commands import run_command
from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from test_generated import SETTINGS

from tape.sweep import checks
from tape.sweep.engine import Engine


def of_a_sweep(settings):
    """The settings of a tiny run, but for the experiment, which the sweep has."""
    own = [setting for setting in settings if not setting.startswith("experiment=")]
    return [*own, "trainer.eval_steps=1000", "task.samples=1"]


TEXT = ["vocab_size=300", "length=32", "trainer.max_steps=2", "trainer.logging_steps=1"]
TEXT += ["model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"]
TEXT += ["eval_blocks=8", "report.tokens=512", "trainer.eval_steps=1000"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Runs sweep.py, and every command of it in this process."""

    def perform(words):
        hydra = Singleton.get_state()  # sweep.py is a command of Hydra, as some of these
        GlobalHydra.instance().clear()
        logging.getLogger().handlers.clear()
        outcome = run_command(*words[1:], folder=tmp_path)
        Singleton.set_state(hydra)
        return outcome

    def performed(words):
        outcome = perform(words)
        return outcome.status, outcome.err

    async def execute(self, words, log):
        outcome = perform(words)
        if log is None:
            print(outcome.out, outcome.err)
        else:
            with log.open("a") as file:
                file.write(outcome.out + outcome.err)
        return outcome.status

    monkeypatch.setattr(Engine, "execute", execute)
    monkeypatch.setattr(checks, "performed", performed)
    return lambda *words: run_command("sweep.py", *words, folder=tmp_path)


def lines(pattern, outcome):
    return re.findall(pattern, outcome.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "evaluation", "message"),
    [
        ("encodings", "--lengths 0", "--lengths: '0' must be an integer >= 2"),
        ("encodings", "--lengths", "--lengths: expected at least one argument"),
        ("encodings", "--rows 3", "unrecognized arguments: --rows 3"),
        ("encodings", "--ou a.csv", "--ou is set by the sweep"),
        ("passkey", "--name other", "--name is set by the sweep"),
        ("addition", "samples=0", "--samples: '0' must be an integer >= 1"),
        ("addition", "sampels=2", "unrecognized arguments: --sampels=2"),
        ("addition", "model=a", "model is set by the sweep"),
    ],
)
def test_arguments_of_the_evaluation_are_checked_before_the_first_run(
    sweep, name, evaluation, message, tmp_path
):
    outcome = sweep(f"sweep={name}", "seeds=[0]", f"evaluation='{evaluation}'", "dry_run=true")
    assert outcome.status == 1 and outcome.out == ""
    assert outcome.err.startswith(f"error: evaluation={evaluation}: {message}"), outcome.err
    assert len(outcome.lines) == 1 and not list(tmp_path.iterdir())


def test_addition(sweep, tmp_path):
    words = ["sweep=addition", "vary.position=[rope,tape]", "seeds=[0]"]
    words += ["evaluation='samples=2 processes=1'", "--", *of_a_sweep(SETTINGS["addition"])]
    first = sweep(*words)
    assert first.status == 0, first.out + first.err
    assert lines(r"^add_rope_0: inside: [\d.]+ .*, outside: .*$", first)
    table = (tmp_path / "output" / "compare_add" / "table.md").read_text()
    assert "| rope | 1 | " in table and "| tape | 1 | " in table and table in first.out
    again = sweep(*words)
    assert again.status == 0 and not lines("begins", again) and table in again.out
    assert lines(r"^add_\w+: .*side.*", again) == sorted(lines(r"^add_\w+: in.*", first))


def test_retrieval(sweep, tmp_path):
    words = ["sweep=passkey", "vary.position=[rope,alibi]", "seeds=[0]"]
    words += ["evaluation='--num_tests 1 --depths 2 --processes 1'", "--"]
    outcome = sweep(*words, *of_a_sweep(SETTINGS["passkey"]))
    assert outcome.status == 0, outcome.out + outcome.err
    assert lines(r"passkey_rope_0: inside: [\d.]+ .*, outside: ", outcome)
    table = (tmp_path / "output" / "compare_passkey" / "table.md").read_text()
    assert table.splitlines()[0] == (
        "| encoding | n | up to 32 tokens, % | 64 (2x), % | 128 (4x), % | 256 (8x), % |"
    )
    assert "| rope | 1 | " in table and "| alibi | 1 | " in table and table in outcome.out


def test_text_with_a_run_that_fails(sweep, tmp_path, text):
    flags = f"--data text --files {text} --max_tokens 3000 --processes 1"
    words = ["sweep=encodings", "name=e", "recipe=quick", "seeds=[0]", f"evaluation='{flags}'"]
    words += ["vary.position=[rope,alibi]", "--", *TEXT, "data=text", f"data.files={text}"]
    notes = tmp_path / "output" / "e_alibi_0" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("of somebody else")
    first = sweep(*words)
    assert first.status == 1, first.out
    assert lines(r"e_rope_0: perplexity [\d.]+ at 32, perplexity [\d.]+ at 64, ", first)
    assert "error: e_alibi_0 did not finish, see output/compare_e/e_alibi_0.log: " in first.err
    assert "output/e_alibi_0 has files but no run.json" in first.err
    assert "* output/e_alibi_0: output/e_alibi_0 has no trained.json" in first.out
    assert "| rope | 1 | " in first.out
    shutil.rmtree(notes.parent)
    log = tmp_path / "output" / "compare_e" / "e_rope_0.log"
    before = len(log.read_text())
    second = sweep(*words)
    assert second.status == 0, second.out + second.err
    # The text lies in files: the run checks them, and has finished.
    assert lines(r"^(\w+): run . of 2 begins", second) == ["e_rope_0", "e_alibi_0"]
    assert "\nstep " not in log.read_text()[before:]
    assert lines(r"^e_rope_0: p.*", second) == lines(r"^e_rope_0: p.*", first)
    table = (tmp_path / "output" / "compare_e" / "table.md").read_text()
    assert "| alibi | 1 | " in table and table in second.out


def test_ablations_have_a_table_each(sweep, tmp_path, text):
    flags = f"--data text --files {text} --max_tokens 2000 --processes 1"
    words = [
        "sweep=ablations",
        "only=[equivariance]",
        "vary.ablation=[tensorial,full]",
        "seeds=[0]",
    ]
    words += [f"evaluation='{flags}'", "--", *TEXT, "data=text", f"data.files={text}"]
    outcome = sweep(*words)
    assert outcome.status == 0, outcome.out + outcome.err
    table = (tmp_path / "output/compare_ablation/equivariance/table.md").read_text()
    assert table in outcome.out
    head = "| encoding | n | perplexity 4 | perplexity 8 | perplexity 16 | perplexity 32 |\n"
    assert table.startswith(head)  # the gain needs more windows
    assert "| encoding | n | tokens/s | memory, GiB |" in table
    assert "No differences to tape equivariant=True: they need two rows with two seeds" in table
    rows = re.findall(r"^\| (tape .*?) \|", table, re.MULTILINE)
    assert {tuple(re.findall(r"=(\w+)", row)) for row in rows} == {
        ("False",),  # of `equivariant`, the only setting in which they differ
        ("True",),
    }
