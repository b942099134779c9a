"""In two processes: a model whose weights are spread over them gives the numbers of a whole one,
or is refused. One line for each folder.

torchrun --nproc-per-node 2 tests/tensor_parallel.py FOLDER...
"""

import sys

import torch
from torch import distributed
from transformers.distributed.configuration_utils import DistributedConfig

from tape import TapeForCausalLM


def numbers(model):
    tokens = torch.arange(2 * 12).view(2, 12)
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        found = [model.eval()(tokens).logits, model.generate(tokens, **settings)]
    loss = model.train()(tokens, labels=tokens).loss
    loss.backward()
    gradient = model.model.layers[0].self_attn.k_proj.weight.grad
    whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return [*found, loss.detach(), whole]


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    for folder in sys.argv[1:]:
        verdict = "equal"
        try:
            config = DistributedConfig(tp_size=2)
            spread = TapeForCausalLM.from_pretrained(folder, distributed_config=config)
        except ValueError as error:
            verdict = str(error)
        else:
            whole = TapeForCausalLM.from_pretrained(folder)
            for found, expected in zip(numbers(spread), numbers(whole), strict=True):
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert spread.lm_head.weight.to_local().numel() < whole.lm_head.weight.numel()
        distributed.barrier()
        if distributed.get_rank() == 0:
            print(verdict)
