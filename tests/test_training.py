"""Runs from a composed configuration to the report: what they write, continue from and refuse."""

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import hydra
import pytest
import torch
from conftest import composed
from hydra.errors import HydraException
from omegaconf import OmegaConf
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from tape import TapeConfig
from tape.commands import train
from tape.data import EpochOrder, TextCorpus, train_tokenizer
from tape.model.layer import Attention
from tape.positions import ALIASES, ENCODINGS
from tape.runs.folder import (
    last_complete,
    register_run,
    remove_old,
    unfinished,
    verify_checkpoint,
)
from tape.runs.metrics import read_metrics
from tape.settings import composition as command
from tape.settings.groups import options
from tape.training.arguments import FIXED, check_training
from tape.training.callbacks import (
    Console,
    NonFiniteLoss,
    StopAndNaNCallback,
    Stopped,
    peak_flops,
)
from tape.training.trainer import LanguageModelTrainer

ROOT = Path(__file__).parent.parent


def choices(group):
    return sorted(options(group))


PRESETS = dict.fromkeys(("gemma", "rnope", "swan"), "mixed")
PRESETS |= dict.fromkeys(("tape_subset", "tape_xavier"), "tape")


@pytest.mark.parametrize("position", sorted({*choices("position")} - {"keep"}))
def test_every_position_builds_with_known_arguments(position):
    settings = OmegaConf.to_container(composed(f"position={position}"), resolve=True)
    config = TapeConfig(**settings["model"] | {"position": settings["position"], "vocab_size": 99})
    assert config.position["name"] == (PRESETS | ALIASES).get(position, position)
    assert position in {*ENCODINGS, *ALIASES, *PRESETS}


@pytest.mark.parametrize(
    "chosen",
    [f"{group}={name}" for group in ("model", "experiment", "trainer") for name in choices(group)],
)
def test_every_model_experiment_and_trainer_composes(chosen):
    cfg = composed(chosen, "trainer.use_cpu=true")
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    assert isinstance(arguments, TrainingArguments) and arguments.max_steps == cfg.trainer.max_steps


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_every_field_of_training_arguments_is_a_setting(prefix):
    names = sorted(field.name for field in dataclasses.fields(TrainingArguments) if field.init)
    words = [f"{prefix}trainer.{name}=null" for name in names]
    found = command.composed([*words, f"{prefix}trainer.optim_args.a=1"], "train").trainer
    assert {*found} == {*names, "_target_"} and found.optim_args == {"a": 1}
    with pytest.raises(HydraException):
        command.composed(["trainer.no_such_field=1"], "train")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_gpu_trains_on_its_cpu(start, finished):
    recorded = json.loads((finished / "run.json").read_text())["trainer"]
    assert "use_cpu" not in recorded
    start("trainer.use_cpu=true", "trainer.max_steps=9")


def test_addition_is_tried_in_seconds(tmp_path):
    folder = tmp_path / "run"
    train.run(composed("experiment=addition_quick", f"output_dir={folder}"))
    assert "| length | right answers |" in (folder / "report" / "report.md").read_text()


def test_runs_of_a_sweep_have_their_own_folders():
    sweep = [composed(), composed("position=rope"), composed("seed=1"), composed("data=text")]
    assert len({cfg.output_dir for cfg in sweep}) == 4


def test_an_experiment_overrides_the_defaults_and_the_command_line_both():
    assert composed().length == 256
    assert composed("experiment=quick").length == 64
    assert composed("experiment=quick", "length=32").model.max_position_embeddings == 32
    assert composed("experiment=paper").model.hidden_size == 768
    assert composed("experiment=paper", "model=tiny").model.hidden_size == 128


@pytest.mark.parametrize(
    ("experiment", "length", "batch", "steps", "rate", "schedule", "warmup", "decay"),
    [
        ("addition_20", 64, 512, 20_000, 1e-4, "polynomial", 0.02, 0.01),
        ("paper", 1024, 512, 10_000, 1e-4, "polynomial", 0.02, 0.01),
        ("scrolls", 1024, 64, 1_000, 1e-5, "polynomial", 0.1, 0.01),
        ("llama_extend", 8192, 64, 1_000, 2e-5, "constant_with_warmup", 0.05, 0.0),
    ],
)
def test_the_papers_recipes(experiment, length, batch, steps, rate, schedule, warmup, decay):
    """Table 5 of the paper; schedules, warm-up and decay are those of its scripts."""
    cfg = composed(f"experiment={experiment}", "trainer.use_cpu=true")
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    assert (cfg.length, arguments.max_steps, arguments.learning_rate) == (length, steps, rate)
    sequences = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    assert sequences == batch and not cfg.optimizer  # AdamW
    assert arguments.optim.startswith("adamw") and arguments.lr_scheduler_type == schedule
    assert (arguments.warmup_steps, arguments.weight_decay) == (warmup, decay)


@pytest.mark.usefixtures("whole_sample")
def test_a_run_ends_in_a_model_and_a_report(start, capsys):
    folder = start("position=tape")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.position["name"] == "tape"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert not list(folder.glob("*.bin"))
    assert model.config.use_cache  # off in training alone

    summary = json.loads((folder / "report" / "report.json").read_text())
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
    assert all(0 < row["data_share"] < 1 and "mfu" not in row for row in rows if "loss" in row)


def test_mfu_is_the_share_of_a_known_gpus_peak(monkeypatch):
    gpu = torch.device("cuda")
    for name, peak in {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA A100-SXM4-40GB": 312e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L4": 121e12,
        "NVIDIA L40": None,  # not listed
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,  # a part of one
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert peak_flops(gpu, torch.bfloat16) == peak_flops(gpu, torch.float16) == peak, name
        assert peak_flops(gpu, torch.float32) is None  # tensor cores may or may not take part
    assert peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_a_run_shorter_than_logging_steps_has_a_loss_and_measures(start, monkeypatch):
    item = EpochOrder.__getitem__
    slow = lambda self, n: time.sleep(0.05) or item(self, n)  # noqa: E731
    monkeypatch.setattr(EpochOrder, "__getitem__", slow)  # each of the four sequences of a step
    folder = start("position=rope", "trainer.max_steps=2", "trainer.logging_steps=50")
    (row,) = (row for row in read_metrics(folder / "metrics.jsonl") if "loss" in row)
    steps = 2 * 4 * 64 / row["tokens_per_second"]  # seconds
    assert row["step"] == 2 and row["loss"] > 0
    assert row["data_share"] >= 0.4 / (0.4 + steps) - 0.01
    text = (folder / "report" / "report.md").read_text()
    assert f", {row['data_share']:.1%} of its time waiting for data (median)" in text
    assert json.loads((folder / "report" / "report.json").read_text())["peak_memory_gib"] > 0


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def assert_same_weights(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def losses(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    return [(row["step"], row["loss"]) for row in rows if "loss" in row]


@pytest.mark.parametrize(
    ("position", "workers", "optimizer"),
    [
        ("randpe", 1, "adamw"),
        ("tape", 0, "muon"),
        pytest.param("tape", 0, "adamw", marks=pytest.mark.slow),
        pytest.param("tape", 1, "adamw", marks=pytest.mark.slow),
    ],
)
def test_a_continued_run_equals_an_uninterrupted_one(start, tmp_path, position, workers, optimizer):
    settings = [
        f"position={position}",
        f"optimizer={optimizer}",
        "trainer.logging_steps=3",  # the checkpoint lies between two log entries
        f"trainer.dataloader_num_workers={workers}",
    ]
    whole, killed = start(*settings, folder=tmp_path / "whole"), tmp_path / "killed"
    shutil.copytree(whole, killed)
    # As if killed while it saved step 8: its folder has not got its name yet.
    unfinished(killed).mkdir()
    (killed / "checkpoint-8").rename(unfinished(killed) / "checkpoint-8")
    (killed / "model.safetensors").unlink()
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    start(*settings, folder=killed)
    assert_same_weights(weights(whole), weights(killed))
    assert losses(killed) == losses(whole)
    assert not unfinished(killed).exists()


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_a_finished_run_only_reports_again(start):
    settings = ["trainer.lr_scheduler_type=polynomial"]
    folder = start(*settings)
    before, metrics = weights(folder), (folder / "metrics.jsonl").read_text()
    (folder / "model.safetensors").unlink()  # as if killed before the model was saved
    shutil.rmtree(folder / "report")
    for _ in range(2):
        start(*settings)
        assert_same_weights(before, weights(folder))
        assert (folder / "metrics.jsonl").read_text() == metrics
        assert checkpoint_names(folder) == ["checkpoint-4", "checkpoint-8"]
        assert json.loads((folder / "report" / "report.json").read_text())["steps"] == 8
    with pytest.raises(ValueError, match=r"checkpoint-8 is beyond trainer\.max_steps=6"):
        start(*settings, "trainer.max_steps=6")


def test_a_finished_run_may_go_on(start, finished):
    folder = finished
    memory = json.loads((folder / "report" / "report.json").read_text())["peak_memory_gib"]
    start("trainer.max_steps=12", "trainer.logging_steps=1")
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["steps"] == 12 and summary["peak_memory_gib"] >= memory > 0
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8, 9, 10, 11, 12]
    assert checkpoint_names(folder) == ["checkpoint-12", "checkpoint-8"]


def test_a_run_does_not_go_on_with_another_text(start, finished, text):
    original = text.read_text()
    try:
        text.write_text(original.replace("sheep", "zebras"))
        with pytest.raises(ValueError, match=r"another configuration:\n  tokens\.train: "):
            start("trainer.max_steps=12")
    finally:
        text.write_text(original)
    assert checkpoint_names(finished) == ["checkpoint-4", "checkpoint-8"]


def test_a_failed_first_try_does_not_block_the_folder(start):
    with pytest.raises(ValueError, match="vocab_size=100"):
        start("vocab_size=100")
    with pytest.raises(ValueError, match="beta"):  # the optimizer is made late
        start("+trainer.adam_beta1=-1")
    start()


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(flush=True)
input()
"""


def test_two_processes_cannot_work_in_one_folder(start, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")  # of torchrun, whose processes the run does not see
    (tmp_path / "run").mkdir()
    words = [sys.executable, "-c", HOLD, tmp_path / "run" / ".lock"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(ValueError, match=r"another process is using .*run"):
            start()
        other.communicate(b"\n")
    start()


@pytest.mark.usefixtures("whole_sample")
def test_a_range_shorter_than_the_sample_and_no_padding(start, text, cache, tmp_path):
    tokenizer = train_tokenizer(TextCorpus(text), 300, cache)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    given = [f"tokenizer={tmp_path / 'tokenizer'}", "length=32", "position.length=64"]
    folder = start("position=randpe", *given)
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert [row["length"] for row in summary["perplexity"]] == [32, 64]
    assert AutoModelForCausalLM.from_pretrained(folder).config.pad_token_id is None


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("optimizer.pt", cut_short),
        ("model.safetensors", flip_a_byte),
        ("optimizer.pt", Path.unlink),
        ("sha256.json", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_named_and_left_out(start, finished, caplog, name, harm):
    folder = finished
    expected = weights(folder)
    assert last_complete(folder).name == "checkpoint-8"
    harm(folder / "checkpoint-8" / name)
    caplog.clear()
    assert last_complete(folder).name == "checkpoint-4"
    assert f"checkpoint-8 is skipped: {name}" in caplog.text or name == "sha256.json"
    start()
    assert verify_checkpoint(folder / "checkpoint-8") is None
    assert_same_weights(expected, weights(folder))


def test_a_checkpoint_that_cannot_be_written_leaves_the_others(start, monkeypatch):
    """Files may not grow beyond a limit here, as on a disk that is full."""
    folder = start("trainer.max_steps=4")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder / "checkpoint-4" / "optimizer.pt").stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, limits[1]))
    try:
        with pytest.raises(OSError, match=r"checkpoint-8 could not be written .*earlier"):
            start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert checkpoint_names(folder) == ["checkpoint-4"]
    assert verify_checkpoint(folder / "checkpoint-4") is None
    assert not unfinished(folder).exists()
    start()
    assert checkpoint_names(folder) == ["checkpoint-4", "checkpoint-8"]


def test_the_sequences_of_a_step_may_be_spread_otherwise_but_not_be_others(start):
    folder = start("trainer.max_steps=4", "trainer.per_device_train_batch_size=4")
    with pytest.raises(ValueError, match="sequences_per_step: 4 -> 8"):
        start("trainer.per_device_train_batch_size=8")
    spread = ["trainer.per_device_train_batch_size=2", "trainer.gradient_accumulation_steps=2"]
    start(*spread)
    assert checkpoint_names(folder) == ["checkpoint-4", "checkpoint-8"]


def test_gradient_accumulation_gives_the_loss_of_the_large_batch(start, tmp_path):
    settings = ["position=tape", "trainer.logging_steps=1"]
    small = ["trainer.per_device_train_batch_size=1", "trainer.gradient_accumulation_steps=4"]
    whole = losses(start(*settings, folder=tmp_path / "whole"))
    parts = losses(start(*settings, *small, folder=tmp_path / "parts"))
    assert [step for step, _ in whole] == [step for step, _ in parts] == list(range(1, 9))
    for (_, one), (_, other) in zip(whole, parts, strict=True):
        assert other == pytest.approx(one, abs=1e-5)


@pytest.mark.parametrize(("position", "step"), [("tape", 3), ("randpe", 4), ("tape", 8)])
def test_a_run_told_to_stop_saves_and_says_so(start, tmp_path, position, step):
    """SIGTERM within a step: the run saves after it, exits, and continues to the same end; also
    where a validation is due. In the last step it just ends."""
    settings = [f"position={position}", "trainer.logging_steps=5"]
    whole = start(*settings, folder=tmp_path / "whole")

    class Terminate(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == step - 1:
                signal.raise_signal(signal.SIGTERM)

    def interrupted(self, *args, **kwargs):
        self.add_callback(Terminate())
        return original(self, *args, **kwargs)

    folder, original = tmp_path / "run", LanguageModelTrainer.train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LanguageModelTrainer, "train", interrupted)
        if step < 8:
            with pytest.raises(Stopped, match=f"stopped after step {step}, which is saved"):
                start(*settings)
            assert checkpoint_names(folder) == [f"checkpoint-{step}"]
            assert not (folder / "model.safetensors").exists()
        else:
            start(*settings)
    start(*settings)
    assert_same_weights(weights(whole), weights(folder))
    timed = {"tokens_per_second", "peak_memory_gib", "data_share", "mfu"}

    def rows(folder):
        return [
            {key: row[key] for key in row if key not in timed and not key.startswith("eval_s")}
            for row in read_metrics(folder / "metrics.jsonl")
        ]

    for row in (ours := rows(folder)) + (theirs := rows(whole)):
        row.pop("eval_runtime", None)
    assert ours == theirs


def test_a_longer_schedule_is_followed_from_its_first_step(start, tmp_path):
    def rates(folder):
        rows = read_metrics(folder / "metrics.jsonl")
        return {row["step"]: row["learning_rate"] for row in rows if "learning_rate" in row}

    settings = ["trainer.lr_scheduler_type=linear", "trainer.logging_steps=1"]
    long = start(*settings, "trainer.max_steps=8", folder=tmp_path / "long")
    start(*settings, "trainer.max_steps=4")
    raised = start(*settings, "trainer.max_steps=8")
    assert rates(raised)[5] == rates(long)[5] > 0


def test_old_checkpoints_and_damaged_later_ones_are_removed(tmp_path):
    for step in (2, 4, 6, 10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
    remove_old(tmp_path / "checkpoint-6", 2)
    assert checkpoint_names(tmp_path) == ["checkpoint-4", "checkpoint-6"]
    remove_old(tmp_path / "checkpoint-6", None)
    assert checkpoint_names(tmp_path) == ["checkpoint-4", "checkpoint-6"]


def test_a_run_that_saves_nothing_on_the_way_is_finished_once(start):
    folder = start("trainer.save_strategy=no")
    metrics = (folder / "metrics.jsonl").read_text()
    assert checkpoint_names(folder) == ["checkpoint-8"]
    start("trainer.save_strategy=no")
    assert (folder / "metrics.jsonl").read_text() == metrics


@pytest.mark.slow
def test_kills_at_random_moments_change_nothing(text, cache):
    """One SIGKILL and one SIGTERM; more by hand with `python tests/crash.py --kills 20`."""
    settings = ["data=text", f"data.files={text}", f"cache_dir={cache}", "vocab_size=300"]
    command = [sys.executable, "tests/crash.py", "--kills=2", "--steps=16", *settings]
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "SIGKILL -> status -9" in outcome.stdout
    assert outcome.stdout.rstrip().endswith("equal the uninterrupted run's")


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="not a run's folder"):
        register_run(tmp_path, {})


@pytest.mark.parametrize("late", [False, True])
def test_a_loss_that_is_not_finite_ends_the_run(late, start, monkeypatch):
    """Or is read one step later, as on a GPU."""
    monkeypatch.setattr(
        "tape.training.trainer.StopAndNaNCallback", lambda **given: StopAndNaNCallback(late=late)
    )
    applied = "was found one step later" if late else "was not applied"
    with pytest.raises(NonFiniteLoss, match=rf"step 2, .*learning rate .*{applied}"):
        start("trainer.learning_rate=1e30", "trainer.max_grad_norm=0", "trainer.warmup_steps=0")


def test_weights_that_are_not_finite_are_never_saved(start, tmp_path):
    with pytest.raises(NonFiniteLoss, match=r"not finite after step 1: not saved"):
        start("trainer.learning_rate=1e38", "trainer.warmup_steps=0", "trainer.save_steps=1")
    assert checkpoint_names(tmp_path / "run") == []


@pytest.mark.parametrize("field", FIXED)
def test_fields_that_a_run_fixes_are_refused(field, tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    arguments.train_sampling_strategy, arguments.remove_unused_columns = "sequential", False
    check_training(arguments)
    *owner, name = field.split(".")
    setattr(getattr(arguments, owner[0]) if owner else arguments, name, "other")
    with pytest.raises(ValueError, match=f"trainer.{field}=other: {re.escape(FIXED[field][1])}"):
        check_training(arguments)


NO_EFFECT = {"fp16_full_eval", "bf16_full_eval", "label_names", "remove_unused_columns"}
NO_EFFECT |= {"batch_eval_metrics", "prediction_loss_only", "include_for_metrics", "use_cache"}
NO_EFFECT |= {"eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"}
NO_EFFECT |= {"length_column_name", "use_liger_kernel", "liger_kernel_config"}
NO_EFFECT |= {"enable_jit_checkpoint", "hub_model_id", "hub_token", "hub_strategy"}
NO_EFFECT |= {"hub_private_repo", "hub_always_push", "hub_revision"}


def test_fields_without_effect_are_fixed():
    assert FIXED.keys() >= NO_EFFECT


@pytest.mark.parametrize("field", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_has_two_names(field, run_quick, tmp_path, monkeypatch):
    """Layers compute their forward pass again, in the two steps of the run."""
    calls = []
    forward = Attention.forward
    monkeypatch.setattr(
        Attention, "forward", lambda self, *x, **y: calls.append(1) or forward(self, *x, **y)
    )
    settings = ("trainer.max_steps=2", "trainer.save_steps=2", "trainer.eval_strategy=no")
    counts = []
    for number, given in enumerate(([], [f"trainer.{field}=true"])):
        run_quick(*settings, *given, folder=tmp_path / str(number))
        counts.append(len(calls))
        calls.clear()
    assert counts[1] == counts[0] + 2 * 2  # two steps of two layers


def test_a_service_without_an_account_is_named(start, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(*_, **__):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ValueError, match=r"report_to=wandb: No API .*; .*WANDB_MODE=offline"):
        start("trainer.report_to=wandb")


def test_a_line_has_step_loss_rate_speed_and_time_left(capsys):
    console, state = Console(), TrainerState(max_steps=4, global_step=2, is_world_process_zero=True)
    console.tokens, console.seconds, console.steps = 3000, 2.0, 2
    console.on_log(None, state, None, {"loss": 1.5, "learning_rate": 1e-3})
    line = "step 2/4  loss 1.5000  lr 1.00e-03  1,500 tokens/s  00:02 left\n"
    assert capsys.readouterr().out == line


TERMINATED = """
import signal
from tape.commands import train
train.settings_of = lambda cfg: signal.raise_signal(signal.SIGTERM)
train.main()
"""


def test_sigterm_before_the_first_step_has_the_same_status(tmp_path):
    command = [sys.executable, "-c", TERMINATED, f"output_dir={tmp_path / 'run'}"]
    told = tmp_path / "status"
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TAPE_STATUS": str(told)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 75 and told.read_text() == "75", ended.stderr
    assert ended.stderr == "stopped outside of its steps: the same command continues\n"
