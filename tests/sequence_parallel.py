"""In n processes that share each text: the numbers of one process, encoding by encoding.

torchrun --nproc-per-node N tests/sequence_parallel.py ENCODING...

Prints "equal", or why an encoding is refused.
"""

import sys

import torch
from conftest import make_model
from torch import distributed

from tape.model.sequence_parallel import shard_sequence

LENGTH, STEPS = 16, 8


def batch(step=0):
    """Padded on the left and right, with labels in some places."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(61, (2, LENGTH), generator=generator)
    mask = torch.ones_like(tokens)
    mask[0, :5] = 0
    mask[1, -3:] = 0
    labels = tokens.masked_fill(
        (mask == 0) | (torch.rand(2, LENGTH, generator=generator) < 0.3), -100
    )
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def sum_over_processes(tensors):
    for tensor in tensors:
        distributed.all_reduce(tensor)
    return tensors


def gradients(model):
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def assert_equal(name, kernel, **changes):
    """Logits, loss and gradients in float64, with and without padding, then training."""
    settings = {"kernel": kernel, "dtype": torch.float64, "num_hidden_layers": 2} | changes
    whole, shared = make_model(name, **settings), make_model(name, **settings)
    shard_sequence(shared.model, distributed.group.WORLD)
    part = shared.model.shard.part(LENGTH)
    for checkpointing in (False, True):
        for given in (batch(), {"input_ids": batch()["input_ids"], "labels": batch()["input_ids"]}):
            if checkpointing:
                shared.activation_checkpointing_enable({"use_reentrant": False})
            for model in (whole, shared):
                model.eval().zero_grad()
            expected, found = whole(**given, use_cache=False), shared(**given)
            torch.testing.assert_close(found.logits, expected.logits[:, part], atol=1e-9, rtol=0)
            for model in (whole, shared):
                model.train()
            expected, found = whole(**given).loss, shared(**given).loss
            expected.backward()
            found.backward()
            (total,) = sum_over_processes([found.detach().clone()])
            torch.testing.assert_close(total, expected.detach(), atol=1e-10, rtol=0)
            summed = sum_over_processes(gradients(shared))
            torch.testing.assert_close(summed, gradients(whole), atol=1e-9, rtol=1e-6)
    for step in range(STEPS):
        for model in (whole, shared):
            model.zero_grad()
            model(**batch(step)).loss.backward()
            found = gradients(model)
            found = found if model is whole else sum_over_processes(found)
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), found, strict=True):
                    parameter -= 0.1 * gradient
    torch.testing.assert_close([*whole.parameters()], [*shared.parameters()], atol=1e-8, rtol=0)


def check(name):
    for changes in ({}, {"num_key_value_heads": 4}):
        if changes and name == "fox":
            continue
        assert_equal(name, "sdpa", **changes)
    assert_equal(name, "eager", scalable_softmax=True, gated_attention=True)


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for name in sys.argv[1:]:
        verdict = "equal"
        try:
            check(name)
        except ValueError as error:
            verdict = str(error)
        distributed.barrier()
        if distributed.get_rank() == 0:
            print(verdict, flush=True)
