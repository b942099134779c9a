"""Settings of runs: groups that compose, the paper's recipes, and what a run fixes; and Muon with
AdamW in one optimizer: its groups of parameters, steps, state and refusals."""

import copy
import dataclasses
import itertools
import re
from unittest import mock

import hydra
import pytest
import torch
from conftest import composed, gradients, make_model, random_tokens, refuses
from every_encoding import all_positions
from hydra.errors import HydraException
from omegaconf import OmegaConf
from torch.optim import AdamW
from transformers import TrainingArguments, get_scheduler

from tape import TapeConfig
from tape.cli.settings import composition as command
from tape.cli.settings.groups import options
from tape.encodings import ALIASES, ENCODINGS
from tape.model.adapters import Method
from tape.model.layer import Attention
from tape.training.arguments import check_training
from tape.training.optimizer import Muon, MuonWithAdamW, check_rates, parameter_groups
from tape.training.trainer import LanguageModelTrainer

PRESETS = dict.fromkeys(("gemma", "rnope", "swan"), "mixed")
TAPES = ("averages", "gains", "phases", "subset", "xavier")
PRESETS |= {f"tape_{variant}": "tape" for variant in TAPES}
GROUPS = ("model", "experiment", "trainer")


@pytest.mark.parametrize("position", sorted(options("position") - {"keep"}))
def test_every_position_builds_with_known_arguments(position):
    settings = OmegaConf.to_container(composed(f"position={position}"), resolve=True)
    config = TapeConfig(**settings["model"] | {"position": settings["position"], "vocab_size": 99})
    assert config.position["name"] == (PRESETS | ALIASES).get(position, position)
    assert position in {*ENCODINGS, *ALIASES, *PRESETS}


@pytest.mark.parametrize("position", sorted(options("position") - {"keep", *PRESETS}))
def test_settings_are_the_defaults_of_the_class(position):
    given = OmegaConf.to_container(composed(f"position={position}"), resolve=True)["position"]
    defaults = ENCODINGS[given.pop("name")].defaults()
    if position == "learned":
        assert given.pop("length") == 1024  # the class leaves it to the configuration
    lists = {name: list(x) for name, x in defaults.items() if isinstance(x, tuple)}
    assert given.items() <= (defaults | lists).items()


@pytest.mark.parametrize("chosen", [f"{x}={name}" for x in GROUPS for name in sorted(options(x))])
def test_every_model_experiment_and_trainer_composes(chosen):
    cfg = composed(chosen, "trainer.use_cpu=true")
    arguments = hydra.utils.instantiate(cfg.trainer, _convert_="all")
    assert isinstance(arguments, TrainingArguments) and arguments.max_steps == cfg.trainer.max_steps


@pytest.mark.parametrize("experiment", ["text", "lengths", "bigrams"])
@pytest.mark.parametrize("position", ["learned", "randpe"])
def test_limited_positions_are_as_many_as_a_sweep_evaluates(experiment, position):
    cfg = composed(f"experiment={experiment}", f"position={position}")
    assert (cfg.position.length or 4 * cfg.length) >= max(cfg.evaluate.perplexity.lengths)


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
        refuses(f"trainer.{name}=other: .*; leave it at its default", check_training, changed)


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


HIDDEN = re.compile(r"model\.layers\.\d\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.weight")
OWN = re.compile(r"model\.position\..*|model\.layers\.\d\.context\..*")


MUON = {"matrix_learning_rate": 0.02}


@all_positions
@pytest.mark.parametrize("given", [{}, MUON, MUON | {"encoding_factor": 10}])
def test_each_parameter_has_one_optimizer_and_rate(position, given, tmp_path):
    model = make_model(position, attention_bias=True)
    names = {parameter: name for name, parameter in model.named_parameters()}
    factor, muon = (given.get(key) for key in ("encoding_factor", "matrix_learning_rate"))
    own = {name for name in names.values() if OWN.fullmatch(name)} if factor else set()
    arguments = TrainingArguments(output_dir=str(tmp_path), weight_decay=0.1, use_cpu=True)
    how = {"args": arguments, "length": 16, "measure": None, "rates": given}
    trainer = LanguageModelTrainer(model=model, **how)
    if factor and not own:
        refuses("encoding_factor: the encoding has no parameters", trainer.create_optimizer)
        return
    groups = trainer.create_optimizer().param_groups
    found = [{names[p] for p in group["params"]} for group in groups]
    rates, decays = [5e-5, 5e-5], [0.1, 0]
    if factor:
        rates, decays = [*rates, 5e-4, 5e-4], [*decays, 0.1, 0]
        assert found[2] | found[3] == own
    if muon:
        rates, decays = [*rates, 0.02], [*decays, 0.1]
        assert found[-1] == {name for name in names.values() if HIDDEN.fullmatch(name)}
    assert [group["lr"] for group in groups] == pytest.approx(rates)
    assert [group["weight_decay"] for group in groups] == decays
    decayed_ones = [of for of, decay in zip(found, decays, strict=True) if decay]
    assert set().union(*decayed_ones) == {*trainer.get_decay_parameter_names(model)}
    assert sorted(itertools.chain(*found)) == sorted(names.values())


def test_it_steps_as_its_parts_do():
    model = make_model("tape").train()
    parted, before = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    both = MuonWithAdamW(parameter_groups(model, 0.1, muon=True), 0.02, {"lr": 1e-2})
    *others, hidden = parameter_groups(parted, 0.1, muon=True)
    parts = AdamW(others, lr=1e-2), Muon([hidden], lr=0.02)
    schedule = get_scheduler("polynomial", both, num_warmup_steps=0, num_training_steps=9)
    assert schedule.get_last_lr() == [1e-2, 1e-2, 0.02]
    for step in range(3):
        for each in (model, parted):
            gradients(each, random_tokens(2, 11, step))
        for optimizer in (both, *parts):
            optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, parted.state_dict()[name]), name
    assert all(value.ne(before[name]).any() for name, value in model.named_parameters())


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_muon_is_that_of_torch_without_its_rounding(shape, monkeypatch):
    """Equal but for the rounding of the iteration: torch's own is moved to float32."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for _ in range(2)]
    weights[1].data.copy_(weights[0].data)
    optimizers = Muon([weights[0]], 0.1), torch.optim.Muon([weights[1]], 0.1)
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda x: x.clone())
    for _ in range(4):
        gradient = torch.randn(shape)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(*weights, atol=1e-5, rtol=1e-5)


def test_rates_in_conflict_with_other_settings_are_refused():
    lora = mock.Mock()
    lora.name = "lora"
    for rates, deepspeed, optim, method, message in (
        ({"encoding_factor": 2}, "ds.json", "adamw_torch", None, "factor=2 with DeepSpeed"),
        ({"encoding_factor": 2}, None, "adafactor", None, "factor=2 with trainer.optim=ada"),
        (MUON, None, "adamw_torch_fused", lora, "optimizer=muon with peft=lora"),
    ):
        arguments = mock.Mock(deepspeed=deepspeed, optim=optim)
        check_rates({}, arguments, method)
        refuses(message, check_rates, rates, arguments, method)
