"""Settings of runs: groups that compose, the paper's recipes, and what a run fixes."""

import copy
import dataclasses
from unittest import mock

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
from tape.training.arguments import check_training

PRESETS = dict.fromkeys(("gemma", "rnope", "swan"), "mixed")
TAPES = ("averages", "gains", "phases", "subset", "xavier")
PRESETS |= {f"tape_{variant}": "tape" for variant in TAPES}


def choices(*groups):
    return [f"{group}={name}" for group in groups for name in sorted(options(group))]


@pytest.mark.parametrize("position", sorted(options("position") - {"keep"}))
def test_every_position_builds_with_known_arguments(position):
    settings = OmegaConf.to_container(composed(f"position={position}"), resolve=True)
    config = TapeConfig(**settings["model"] | {"position": settings["position"], "vocab_size": 99})
    assert config.position["name"] == (PRESETS | ALIASES).get(position, position)
    assert position in {*ENCODINGS, *ALIASES, *PRESETS}


@pytest.mark.parametrize("chosen", choices("model", "experiment", "trainer"))
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


# Table 5 of the paper: length, sequences of a step, steps and learning rate; of its scripts:
# schedule, warm-up and weight decay.
PAPER = {
    "addition_20": (64, 512, 20_000, 1e-4, "polynomial", 0.02, 0.01),
    "paper": (1024, 512, 10_000, 1e-4, "polynomial", 0.02, 0.01),
    "scrolls": (1024, 64, 1_000, 1e-5, "polynomial", 0.1, 0.01),
    "llama_extend": (8192, 64, 1_000, 2e-5, "constant_with_warmup", 0.05, 0.0),
}


@pytest.mark.parametrize("experiment", PAPER)
def test_the_papers_recipes(experiment):
    cfg = composed(f"experiment={experiment}", "trainer.use_cpu=true")
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    sequences = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    found = [cfg.length, sequences, arguments.max_steps, arguments.learning_rate]
    found += [arguments.lr_scheduler_type, arguments.warmup_steps, arguments.weight_decay]
    assert tuple(found) == PAPER[experiment]
    assert arguments.optim.startswith("adamw") and not cfg.optimizer


# Fields of TrainingArguments without effect, or that would have a wrong one.
FIXED = """
num_train_epochs ignore_data_skip train_sampling_strategy dataloader_drop_last length_column_name
auto_find_batch_size accelerator_config.split_batches accelerator_config.even_batches
resume_from_checkpoint save_only_model load_best_model_at_end label_smoothing_factor push_to_hub
hub_model_id hub_token hub_strategy hub_private_repo hub_always_push hub_revision label_names
prediction_loss_only batch_eval_metrics include_for_metrics eval_do_concat_batches use_cache
eval_use_gather_object eval_accumulation_steps fp16_full_eval bf16_full_eval remove_unused_columns
use_liger_kernel liger_kernel_config enable_jit_checkpoint optim_args optim_target_modules
metric_for_best_model greater_is_better parallelism_config
"""


def test_fields_that_a_run_fixes_are_refused(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", max_steps=1)
    arguments.train_sampling_strategy, arguments.remove_unused_columns = "sequential", False
    check_training(arguments)
    for name in FIXED.split():
        changed = copy.deepcopy(arguments)
        *owner, field = name.split(".")
        setattr(getattr(changed, owner[0]) if owner else changed, field, "other")
        with pytest.raises(ValueError, match=f"trainer.{name}=other: .*; leave it at its default"):
            check_training(changed)


def test_checkpointing_computes_layers_again(run_quick, tmp_path):
    counts, settings = [], ("trainer.max_steps=2", "trainer.eval_strategy=no")
    for wanted in ("false", "true"):
        with mock.patch.object(Attention, "forward", autospec=True, side_effect=Attention.forward):
            given = f"trainer.gradient_checkpointing={wanted}"
            run_quick(*settings, given, folder=tmp_path / wanted)
            counts.append(Attention.forward.call_count)
    assert counts[1] == counts[0] + 2 * 2  # two steps of two layers


@pytest.mark.parametrize("method", sorted(options("peft")))
def test_the_papers_recipe_takes_every_method(method):
    cfg = composed("experiment=llama_extend", f"peft={method}", "data=local")
    assert Method.of(OmegaConf.to_container(cfg.peft)).name == method
    assert cfg.name == f"llama_{method}"
    assert cfg.tokenizer == cfg.base_model == "meta-llama/Llama-2-7b-hf"
