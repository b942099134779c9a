"""Runs from a composed configuration to the report: what they write, continue from and refuse."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hydra
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainingArguments

import train
from tape import TapeConfig
from tape.data import TextCorpus, train_tokenizer
from tape.positions import ALIASES, ENCODINGS
from tape.training.report import read_metrics
from tape.training.runs import MarkComplete, claim, is_complete, last_complete, locked
from tape.training.trainer import NonFiniteLoss

ROOT = Path(train.__file__).parent
CONFIG = ROOT / "config"


def composed(*overrides):
    with initialize_config_dir(version_base=None, config_dir=str(CONFIG)):
        return compose("train", overrides=list(overrides))


def choices(group):
    return sorted(path.stem for path in (CONFIG / group).glob("*.yaml"))


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A small corpus in which there is something to learn."""
    path = tmp_path_factory.mktemp("text") / "corpus.jsonl"
    rows = [f"line {n} of a text: " + f"{n % 7} sheep and {n % 5} goats. " * 12 for n in range(400)]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(text, cache, tmp_path):
    """Run the quick experiment on the small corpus with further overrides."""

    def start(*overrides, folder=tmp_path / "run"):
        cfg = composed(
            "experiment=quick",
            "data=text",
            f"data.files={text}",
            f"cache_dir={cache}",
            f"output_dir={folder}",
            "vocab_size=300",
            "trainer.max_steps=8",
            "trainer.save_steps=4",
            "trainer.eval_steps=4",
            "trainer.logging_steps=2",
            *overrides,
        )
        train.run(cfg)
        return folder

    return start


@pytest.mark.parametrize("position", choices("position"))
def test_every_position_file_builds_with_known_arguments(position):
    settings = OmegaConf.to_container(composed(f"position={position}"), resolve=True)
    config = TapeConfig(**settings["model"] | {"position": settings["position"], "vocab_size": 99})
    assert config.position["name"] == ALIASES.get(position, position)


def test_there_is_a_file_for_every_encoding_and_alias():
    assert choices("position") == sorted([*ENCODINGS, *ALIASES])


@pytest.mark.parametrize("model", choices("model"))
@pytest.mark.parametrize("experiment", [None, *choices("experiment")])
def test_every_model_and_experiment_composes(model, experiment):
    chosen = [f"experiment={experiment}"] if experiment else []
    cfg = composed(f"model={model}", *chosen, "+trainer.use_cpu=true")
    assert isinstance(hydra.utils.instantiate(cfg.trainer, _convert_="all"), TrainingArguments)


@pytest.mark.parametrize("trainer", choices("trainer"))
def test_every_trainer_file_is_training_arguments(trainer):
    cfg = composed(f"trainer={trainer}")
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    assert arguments.max_steps == cfg.trainer.max_steps
    with pytest.raises(Exception, match="no_such_field"):
        hydra.utils.instantiate(composed("+trainer.no_such_field=1").trainer, _convert_="all")


def test_an_experiment_overrides_the_defaults_and_the_command_line_both():
    assert composed().length == 256
    assert composed("experiment=quick").length == 64
    assert composed("experiment=quick", "length=32").model.max_position_embeddings == 32
    assert composed("experiment=paper").model.hidden_size == 768
    assert composed("experiment=paper", "model=tiny").model.hidden_size == 128


def test_the_papers_batch_is_512_sequences_of_1024():
    trainer = composed("experiment=paper").trainer
    assert trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps == 512


def test_runs_of_a_sweep_have_their_own_folders():
    sweep = [
        composed(f"position={position}", f"seed={seed}", f"data={data}")
        for position in ("tape", "rope")
        for seed in (0, 1)
        for data in ("local", "text")
    ]
    assert len({cfg.output_dir for cfg in sweep}) == 8


@pytest.mark.parametrize("position", ["tape", "randpe", "fire"])
def test_a_run_ends_in_a_model_and_a_report(start, position, capsys):
    folder = start(f"position={position}")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.position["name"] == position
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert not list(folder.glob("*.bin"))

    summary = json.loads((folder / "report" / "report.json").read_text())
    assert [row["times"] for row in summary["perplexity"]] == [1, 2, 4]
    assert all(1 < row["perplexity"] < 310 for row in summary["perplexity"])
    assert summary["parameters"] == model.num_parameters()
    for picture in ("loss.png", "perplexity.png"):
        assert (folder / "report" / picture).read_bytes()[:4] == b"\x89PNG"
    text = (folder / "report" / "report.md").read_text()
    assert text in capsys.readouterr().out
    assert f"| 64 (1x) | {summary['perplexity'][0]['perplexity']:.2f} |" in text

    rows = read_metrics(folder / "metrics.jsonl")
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert [row["step"] for row in rows if "eval_loss" in row] == [4, 8]
    assert all(row["tokens_per_second"] > 0 for row in rows if "loss" in row)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def assert_same_weights(one, other):
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("position", ["tape", "randpe"])
def test_a_continued_run_equals_an_uninterrupted_one(start, tmp_path, position):
    whole = start(f"position={position}", folder=tmp_path / "whole")
    rows = read_metrics(whole / "metrics.jsonl")
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)
    # As if killed while it saved step 8: the mark is missing, the last file is half there.
    (killed / "checkpoint-8" / "complete.json").unlink()
    (killed / "model.safetensors").unlink()
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    start(f"position={position}", folder=killed)
    assert_same_weights(weights(whole), weights(killed))

    def losses(rows):
        return [(row["step"], row["loss"]) for row in rows if "loss" in row]

    assert losses(read_metrics(killed / "metrics.jsonl")) == losses(rows)


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize("schedule", ["cosine", "polynomial"])
def test_a_finished_run_only_reports_again(start, schedule):
    settings = [f"trainer.lr_scheduler_type={schedule}"]
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


def test_a_finished_run_may_go_on(start):
    folder = start()
    memory = json.loads((folder / "report" / "report.json").read_text())["peak_memory_gib"]
    start("trainer.max_steps=12", "trainer.logging_steps=1")
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert summary["steps"] == 12 and summary["peak_memory_gib"] >= memory > 0
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == [2, 4, 6, 8, 9, 10, 11, 12]
    assert checkpoint_names(folder) == ["checkpoint-12", "checkpoint-8"]


def test_a_run_does_not_go_on_with_another_text(start, text):
    folder = start()
    original = text.read_text()
    try:
        text.write_text(original.replace("sheep", "zebras"))
        with pytest.raises(ValueError, match=r"another configuration:\n  tokens\.train: "):
            start("trainer.max_steps=12")
    finally:
        text.write_text(original)
    assert checkpoint_names(folder) == ["checkpoint-4", "checkpoint-8"]


def test_a_failed_first_try_does_not_block_the_folder(start):
    with pytest.raises(ValueError, match="vocab_size=100"):
        start("vocab_size=100")
    with pytest.raises(TypeError):
        start("trainer.learning_rate=abc")
    start()


def test_two_processes_cannot_work_in_one_folder(start, tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(ValueError, match=r"another process is working in .*run"),
    ):
        start()


def test_a_range_shorter_than_the_sample_still_reports(start):
    folder = start("position=randpe", "length=32", "position.length=64")
    summary = json.loads((folder / "report" / "report.json").read_text())
    assert [row["length"] for row in summary["perplexity"]] == [32, 64]


def test_a_tokenizer_without_padding_trains(start, text, cache, tmp_path):
    tokenizer = train_tokenizer(TextCorpus(text), 300, cache)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    folder = start(f"tokenizer={tmp_path / 'tokenizer'}")
    assert AutoModelForCausalLM.from_pretrained(folder).config.pad_token_id is None


def test_a_checkpoint_with_a_file_cut_short_is_not_complete(start):
    folder = start()
    assert last_complete(folder).name == "checkpoint-8"
    damaged = folder / "checkpoint-8" / "optimizer.pt"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert not is_complete(folder / "checkpoint-8")
    assert last_complete(folder).name == "checkpoint-4"


def test_another_configuration_in_the_same_folder_is_refused(start):
    folder = start()
    before = (folder / "run.json").read_text()
    with pytest.raises(ValueError, match=r"trainer\.learning_rate: 0\.002 -> 0\.1") as refusal:
        start("trainer.learning_rate=0.1", "position=rope")
    assert "position.name: tape -> rope" in str(refusal.value)
    assert (folder / "run.json").read_text() == before


def test_a_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="not a run's folder"):
        claim(tmp_path, {})


def test_a_loss_that_is_not_finite_ends_the_run(start):
    with pytest.raises(
        NonFiniteLoss, match=r"step \d+, .*learning rate .*Last good checkpoint: none"
    ):
        start("trainer.learning_rate=1e30", "trainer.max_grad_norm=0")


def test_a_checkpoint_of_broken_weights_is_never_good(start):
    folder = start("trainer.max_steps=4")
    (folder / "checkpoint-4" / "complete.json").unlink()
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.nn.init.constant_(model.lm_head.weight, math.nan)
    arguments = type("Arguments", (), {"output_dir": str(folder)})
    state = type("State", (), {"global_step": 4, "is_world_process_zero": True})
    MarkComplete().on_save(arguments, state, None, model=model)
    assert last_complete(folder) is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.vocab_size=50"], r"tokenizer has 300 tokens but model\.vocab_size=50"),
        (["vocab_size=100"], r"vocab_size=100 is below 258"),
        (["length=1"], r"length=1: a block of less than 2"),
        (["data.files=null"], r"data=text needs data\.files"),
        (["length=100000"], r"less than one block of length=100000"),
        (["tokenizer=no/such"], r"tokenizer='no/such' is neither"),
        (["position=fire", "model.attn_implementation=flash_attention_2"], r"'fire'.*learned term"),
        (["model.attn_implementation=flash_attention_3"], r"'flash_attention_3'.*no such"),
        (["+position.widht=3"], r"takes no argument 'widht'; did you mean 'width'"),
        (["+model.hiden_size=3"], r"takes no argument 'hiden_size'; did you mean 'hidden_size'"),
        (["model.num_attention_heads=5"], r"hidden size \(32\) is not a multiple .*heads \(5\)"),
        (["data.files=/no/such/folder"], r"data\.files: nothing matches"),
    ],
)
def test_bad_settings_are_refused(start, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        start(*overrides)


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_the_command_line_says_what_is_wrong_in_one_line(tmp_path):
    outcome = command("position=alibii")
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("error: unknown position 'alibii'; did you mean 'alibi'?")
    outcome = command(f"output_dir={tmp_path / 'run'}", "data=text", "data.files=/no/such")
    assert outcome.returncode == 1
    assert outcome.stderr.splitlines()[-1] == "error: data.files: nothing matches '/no/such'"
    assert "Traceback" not in outcome.stderr
    assert not (tmp_path / "run" / "run.json").exists()


def test_wandb_is_not_imported_unless_asked_for():
    script = "import sys, train; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0
