"""Runs from a composed configuration to the report: what they write, continue from and refuse; and
runs that end early, by signals, kills, and losses that are not finite."""

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from commands import ROOT
from conftest import refuses
from trained import assert_same_weights, checkpoint_names, locked, losses, told_to_stop, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape.cli.train import STOPPED
from tape.core.metrics import read_metrics
from tape.core.run_folder import SAVING, last_complete, register_run, remove_old, verify_checkpoint
from tape.core.run_folder import locked as lock
from tape.training.callbacks import Console, NonFiniteLoss, StopAndNaNCallback, Stopped, peak_memory
from tape.training.trainer import LanguageModelTrainer


def report_of(folder):
    return json.loads((folder / "report" / "report.json").read_text())


def test_a_run_ends_in_a_model_and_a_report(start, capsys):
    folder = start("position=tape")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert model.config.position["name"] == "tape"
    assert model.config.eos_token_id == AutoTokenizer.from_pretrained(folder).eos_token_id
    assert model.config.use_cache and not list(folder.glob("*.bin"))  # off in training alone
    summary = report_of(folder)
    assert [row["times"] for row in summary["perplexity"]] == [1, 2, 4]
    assert all(1 < row["perplexity"] < 310 for row in summary["perplexity"])
    assert summary["parameters"] == model.num_parameters()
    ngrams = summary["ngrams"]["models"]
    assert [row["model"] for row in ngrams] == ["bigram", "trigram", "5-gram"]
    assert all(1 < row["perplexity"] < 310 for row in ngrams)
    assert summary["ngrams"]["tokens"] == 8 * 4 * 64
    for picture in ("loss.png", "perplexity.png"):
        assert (folder / "report" / picture).read_bytes()[:4] == b"\x89PNG"
    text = (folder / "report" / "report.md").read_text()
    assert text in capsys.readouterr().out
    assert f"| 64 (1x) | {summary['perplexity'][0]['perplexity']:.2f} |" in text
    assert f"| trigram | {ngrams[1]['perplexity']:.2f} | {ngrams[1]['bits_per_byte']:.4f} |" in text

    rows = read_metrics(folder / "metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 8]
    assert all(row["tokens_per_second"] > 0 for row in rows if "loss" in row)


def test_a_run_shorter_than_logging_steps_has_a_loss_and_measures(start):
    folder = start("position=rope", "trainer.max_steps=2", "trainer.logging_steps=50")
    (row,) = (row for row in read_metrics(folder / "metrics.jsonl") if "loss" in row)
    assert row["step"] == 2 and row["loss"] > 0
    text = (folder / "report" / "report.md").read_text()
    assert f", {row['tokens_per_second']:,.0f} tokens/s in training (median)" in text
    assert report_of(folder)["peak_memory_gib"] > 0


@pytest.mark.parametrize(
    "settings", ["position=randpe trainer.dataloader_num_workers=1", "position=tape optimizer=muon"]
)
def test_a_continued_run_equals_an_uninterrupted_one(start, tmp_path, settings):
    settings = [*settings.split(), "trainer.logging_steps=3"]  # the checkpoint lies between entries
    whole, killed = start(*settings, folder=tmp_path / "whole"), tmp_path / "killed"
    shutil.copytree(whole, killed)
    # As if killed while it saved step 6: the folder has not got its name yet.
    (killed / SAVING).mkdir()
    (killed / "checkpoint-8").rename(killed / SAVING / "checkpoint-6")
    (killed / "model.safetensors").unlink()
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    start(*settings, folder=killed)
    assert_same_weights(weights(whole), weights(killed))
    assert losses(killed) == losses(whole)
    assert not (killed / SAVING).exists()


def test_a_finished_run_only_reports_again(start):
    settings = ["trainer.lr_scheduler_type=polynomial", "trainer.save_strategy=no"]
    folder = start(*settings)
    before, metrics = weights(folder), (folder / "metrics.jsonl").read_text()
    (folder / "model.safetensors").unlink()  # as if killed before the model was saved
    shutil.rmtree(folder / "report")
    for _ in range(2):
        start(*settings)
        assert_same_weights(before, weights(folder))
        assert (folder / "metrics.jsonl").read_text() == metrics
        assert checkpoint_names(folder) == ["checkpoint-8"]
        assert report_of(folder)["steps"] == 8
    refuses(r"checkpoint-8 is beyond trainer\.max_steps=6", start, *settings, "trainer.max_steps=6")
    (folder / "metrics.jsonl").unlink()
    refuses(r"metrics\.jsonl is missing", start, *settings)


def test_a_finished_run_may_go_on(start, finished):
    assert "use_cpu" not in json.loads((finished / "run.json").read_text())["trainer"]
    memory = report_of(finished)["peak_memory_gib"]
    start("trainer.max_steps=12", "trainer.logging_steps=1", "trainer.use_cpu=true")
    summary = report_of(finished)
    assert summary["steps"] == 12 and summary["peak_memory_gib"] >= memory > 0
    assert [step for step, _ in losses(finished)] == [2, 4, 6, 8, 9, 10, 11, 12]
    assert checkpoint_names(finished) == ["checkpoint-12", "checkpoint-8"]


def test_failed_tries_do_not_block_the_folder(start, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")  # of torchrun, whose processes the run does not see
    with locked(tmp_path / "run"), pytest.raises(ValueError, match="another process is using"):
        start()
    monkeypatch.delenv("RANK")
    refuses("vocab_size=100", start, "vocab_size=100")
    with pytest.raises(ValueError, match=r"no parameters of its own"):  # the optimizer is made late
        start("position=rope", "+optimizer.encoding_factor=2")
    start()


def test_a_failed_start_leaves_a_folder_as_it_was(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    for name in ("link", "real", "new"):
        with pytest.raises(RuntimeError, match="first"), lock(tmp_path / name):
            raise RuntimeError("first")
    assert not (tmp_path / "new").exists() and not [*(tmp_path / "real").iterdir()]
    none = mock.patch("fcntl.lockf", side_effect=OSError(errno.ENOLCK, "No locks available"))
    with none, pytest.raises(ValueError, match=r"real cannot be locked .* \(No locks"):
        lock(tmp_path / "real").__enter__()


def test_a_resumed_run_validates_when_an_undisturbed_one_does(start):
    settings = ["trainer.eval_on_start=true", "trainer.eval_delay=8"]
    for step in (3, 4):
        with told_to_stop(step), pytest.raises(Stopped):
            start(*settings)
    assert [step for step, _ in losses(start(*settings), "eval_loss")] == [0, 8]


def test_speed_counts_waiting_for_data_but_no_validation(monkeypatch):
    times = iter((10, 12, 15, 20, 21, 23, 24))  # first begin, ends, validation, end, save, end
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    state = SimpleNamespace(global_step=4, max_steps=9, is_world_process_zero=False)
    given, speeds = (SimpleNamespace(device=torch.device("cpu")), state, None), []
    console = Console()
    for events in ("begin end begin end", "validated begin end saved begin end"):
        for event in events.split():
            if event == "validated":
                console.on_log(*given, logs={"eval_loss": 1.0})
            elif event == "saved":
                console.on_save(*given)
            else:
                getattr(console, f"on_step_{event}")(*given)
        console.tokens, logs = 90, {"loss": 1.0, "learning_rate": 1.0}
        console.on_log(*given, logs=logs)
        speeds.append(logs["tokens_per_second"])
    assert speeds == [90 / 5, 90 / 2]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # which trainer.use_cpu ignores
    assert peak_memory(torch.device("cpu")) > 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone begins a new peak")
def test_the_peak_of_memory_is_that_of_the_training(monkeypatch):
    """Not of what the process did before, such as training a tokenizer."""
    device = torch.device("cpu")
    _ = len(b"1" * 2**28)  # freed at once
    before = peak_memory(device)
    Console().on_train_begin(SimpleNamespace(device=device), None, None)
    now = peak_memory(device)
    assert now < before - 2**27
    _ = len(b"1" * 2**27)
    assert peak_memory(device) > now + 2**26
    monkeypatch.setattr(Path, "write_text", mock.Mock(side_effect=PermissionError))
    Console().on_train_begin(SimpleNamespace(device=device), None, None)  # not permitted


def test_who_may_read_a_file_of_a_run_may_read_all(quick_run):
    files = [path for path in quick_run.rglob("[!.]*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1


def test_a_damaged_checkpoint_is_named_and_left_out(start, finished, quick_run, caplog):
    for name, harm in (
        ("sha256.json", Path.unlink),
        ("sha256.json", lambda path: path.write_text("{")),
        ("optimizer.pt", lambda path: path.write_bytes(path.read_bytes()[:-1])),
        ("model.safetensors", lambda path: path.write_bytes(b"x" + path.read_bytes()[1:])),
    ):
        shutil.copytree(quick_run, finished, dirs_exist_ok=True)
        assert last_complete(finished).name == "checkpoint-8"
        harm(finished / "checkpoint-8" / name)
        caplog.clear()
        assert last_complete(finished).name == "checkpoint-4"
        assert re.search(rf"checkpoint-8 is skipped: .*{name}", caplog.text)
    start()
    assert verify_checkpoint(finished / "checkpoint-8") is None
    assert_same_weights(weights(quick_run), weights(finished))


def test_a_checkpoint_that_cannot_be_written_leaves_the_others(start):
    folder = start("trainer.max_steps=4")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for most, weights_exist in ((50_000, False), (250_000, True)):  # less than the optimizer has
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
        try:
            with pytest.raises(OSError, match="checkpoint-8 cannot be written: is the disk full"):
                start()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (folder / SAVING / "checkpoint-8/model.safetensors").exists() == weights_exist
    assert checkpoint_names(folder) == ["checkpoint-4"]
    assert verify_checkpoint(folder / "checkpoint-4") is None
    start()
    assert checkpoint_names(folder) == ["checkpoint-4", "checkpoint-8"]
    assert not (folder / SAVING).exists()


def test_a_process_without_a_saved_state_draws_other_numbers_than_before(tmp_path):
    """As the second one does if there was one, or the only one if there were two."""
    drawn = set()
    for world, rank, step in ((2, 0, 4), (2, 1, 4), (2, 1, 8), (1, 0, 8)):
        trainer = object.__new__(LanguageModelTrainer)
        trainer.args = SimpleNamespace(world_size=world, process_index=rank, seed=0)
        with torch.random.fork_rng():
            first = torch.manual_seed(0) and torch.rand(()).item()
            trainer._load_rng_state(str(tmp_path / f"checkpoint-{step}"))
            drawn |= {first, torch.rand(()).item()}
    assert len(drawn) == 5


def test_the_sequences_of_a_step_may_be_spread_otherwise_but_not_be_others(
    start, finished, quick_run
):
    shutil.rmtree(finished / "checkpoint-8")
    refuses("sequences_per_step: 4 -> 8", start, "trainer.per_device_train_batch_size=8")
    refuses(r"eval_blocks: .* -> 3", start, "eval_blocks=3")  # validations are alike
    start("trainer.per_device_train_batch_size=1", "trainer.gradient_accumulation_steps=4")
    assert dict(losses(finished)) == pytest.approx(dict(losses(quick_run)), abs=1e-5)


def test_the_precision_of_a_launcher_is_that_of_the_settings(start, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    refuses(r"asks for mixed precision 'bf16', the settings for 'no'", start)
    start("trainer.bf16=true", "trainer.max_steps=1")


@pytest.mark.parametrize("supported", [True, False])
def test_a_run_in_bfloat16_on_a_cpu_that_emulates_it_says_so(
    supported, run_quick, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: supported)
    for bf16 in (True, False):
        caplog.clear()
        given = (f"trainer.bf16={str(bf16).lower()}", "trainer.max_steps=1")
        run_quick(*given, folder=tmp_path / given[0])
        said = "slower than float32 here: give trainer.bf16=false" in caplog.text
        assert said == (bf16 and not supported)


def test_a_longer_schedule_is_followed_from_its_first_step(start, quick_run):
    start("trainer.max_steps=4")
    raised, whole = (losses(folder, "learning_rate") for folder in (start(), quick_run))
    assert raised[2] == whole[2] and whole[2][1] > 0 and raised[1] < whole[1]


def test_new_weights_never_lie_beside_the_settings_of_old_ones(start, quick_run, finished):
    replace = Path.replace

    def die(path, target):
        replace(path, target)
        if path.name == "model.safetensors":
            raise KeyboardInterrupt

    with mock.patch.object(Path, "replace", die), pytest.raises(KeyboardInterrupt):
        start("trainer.max_steps=9")
    assert not (finished / "trained.json").exists()
    start("trainer.max_steps=9")
    assert json.loads((finished / "trained.json").read_text())["trainer"]["max_steps"] == 9


def test_old_checkpoints_and_damaged_later_ones_are_removed(tmp_path):
    for step in (2, 4, 6, 10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for limit in (2, None):
        remove_old(tmp_path / "checkpoint-6", limit)
        assert checkpoint_names(tmp_path) == ["checkpoint-4", "checkpoint-6"]


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    refuses("not a run's folder", register_run, tmp_path, {})


KILLS = int(os.environ.get("KILLS", 1))


def test_a_run_told_to_stop_saves_and_says_so(start, tmp_path):
    """SIGTERM within a step: the run saves after it, exits, and continues to the same end; also
    where a validation is due. In the last step it just ends."""
    settings = ["position=randpe", "trainer.logging_steps=5"]
    whole = start(*settings, folder=tmp_path / "whole")
    for step in (3, 4, 8):
        folder = tmp_path / str(step)
        with told_to_stop(step), suppress(Stopped) if step == 8 else pytest.raises(Stopped):
            start(*settings, folder=folder)
        assert checkpoint_names(folder)[-1] == f"checkpoint-{step}"
        assert (folder / "model.safetensors").exists() == (step == 8)
        assert len(losses(folder, "eval_loss")) == (2 if step == 8 else 0)  # made up for later
        start(*settings, folder=folder)
        assert_same_weights(weights(whole), weights(folder))
        for name in ("loss", "eval_loss", "grad_norm", "learning_rate", "epoch", "total_flos"):
            assert losses(folder, name) == losses(whole, name) != []


TERMINATED = """
import signal
from tape.cli import train
train.settings_of = lambda cfg: signal.raise_signal(signal.SIGTERM)
train.main()
"""


def test_sigterm_before_the_first_step_has_the_same_status(tmp_path):
    command = [sys.executable, "-c", TERMINATED, f"output_dir={tmp_path / 'run'}"]
    environment = os.environ | {"TAPE_STATUS": str(told := tmp_path / "status")}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 75 and told.read_text() == "75", ended.stderr
    assert ended.stderr == "stopped outside of its steps: the same command continues\n"


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(start, text, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    steps = ["trainer.max_steps=16", "trainer.save_steps=1", "trainer.logging_steps=1"]
    whole, killed = start(*steps), tmp_path / "killed"
    settings = ["experiment=quick", "data=text", f"data.files={text}", f"cache_dir={cache}"]
    settings += ["vocab_size=300", "trainer.eval_steps=4", *steps, f"output_dir={killed}"]
    signals = [(signal.SIGKILL, signal.SIGTERM)[n % 2] for n in range(KILLS)]
    for wanted in (*signals, None):
        command, how = [sys.executable, "train.py", *settings], {"stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **how)
        said = ""
        for line in process.stdout:
            said += line
            if wanted and line.startswith(("continuing from", "position")):
                time.sleep(random.uniform(0.1, 0.8))
                process.send_signal(wanted)
        ended = (0,) if wanted is None else (-signal.SIGKILL, STOPPED, 0)
        assert process.wait() in ended, said
    assert_same_weights(weights(whole), weights(killed))
    assert losses(whole) == losses(killed)


@pytest.mark.parametrize("late", [False, True])
def test_a_loss_that_is_not_finite_ends_the_run(late, start, monkeypatch):
    """Or is read one step later, as on a GPU."""
    monkeypatch.setattr(
        "tape.training.callbacks.StopAndNaNCallback", lambda **given: StopAndNaNCallback(late=late)
    )
    applied = "was found one step later" if late else "was not applied"
    with pytest.raises(NonFiniteLoss, match=rf"step 2, .*learning rate .*{applied}"):
        start("trainer.learning_rate=1e30", "trainer.max_grad_norm=0", "trainer.warmup_steps=0")


def test_weights_that_are_not_finite_are_never_saved(start, tmp_path):
    with pytest.raises(NonFiniteLoss, match=r"not finite after step 1: not saved"):
        start("trainer.learning_rate=1e38", "trainer.warmup_steps=0", "trainer.save_steps=1")
    assert checkpoint_names(tmp_path / "run") == []
