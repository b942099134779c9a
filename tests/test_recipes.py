"""Settings of runs: groups that compose, the paper's recipes, and what a run fixes."""

import dataclasses
import re

import hydra
import pytest
from conftest import composed
from hydra.errors import HydraException
from omegaconf import OmegaConf
from transformers import TrainingArguments

from tape import TapeConfig
from tape.model.adapters import Method
from tape.model.layer import Attention
from tape.positions import ALIASES, ENCODINGS
from tape.settings import composition as command
from tape.settings.groups import options
from tape.training.arguments import FIXED, check_training

PRESETS = dict.fromkeys(("gemma", "rnope", "swan"), "mixed")
PRESETS |= dict.fromkeys(("tape_subset", "tape_xavier"), "tape")


def choices(group):
    return sorted(options(group))


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


@pytest.mark.parametrize("method", choices("peft"))
def test_the_papers_recipe_takes_every_method(method):
    cfg = composed("experiment=llama_extend", f"peft={method}", "data=local")
    recipe, trainer = Method.of(OmegaConf.to_container(cfg.peft)), cfg.trainer
    assert recipe.name == method and cfg.name == f"llama_{method}"
    assert trainer.per_device_train_batch_size * trainer.gradient_accumulation_steps == 64
    assert (cfg.length, trainer.max_steps, trainer.learning_rate) == (8192, 1000, 2e-5)
    assert cfg.tokenizer == cfg.base_model == "meta-llama/Llama-2-7b-hf"
