"""Muon and AdamW in one optimizer: its parameter groups, steps, state and refusals."""

import copy
import itertools
import re
from unittest import mock

import pytest
import torch
from conftest import gradients, make_model, random_tokens
from every_encoding import all_positions
from torch.optim import AdamW
from transformers import TrainingArguments, get_scheduler

from tape.training.optimizer import Muon, MuonWithAdamW, check_rates, parameter_groups
from tape.training.trainer import LanguageModelTrainer

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
        with pytest.raises(ValueError, match="encoding_factor: the encoding has no parameters"):
            trainer.create_optimizer()
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
        with pytest.raises(ValueError, match=message):
            check_rates(rates, arguments, method)
