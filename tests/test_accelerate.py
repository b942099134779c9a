"""accelerate keeps weights off the device and loads a module's own when the module is called."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from conftest import all_positions, make_model, random_tokens


def everything(model, folder):
    return cpu_offload(model, execution_device="cpu")


def with_buffers(model, folder):
    return cpu_offload(model, execution_device="cpu", offload_buffers=True)


def on_disk(model, folder):
    return disk_offload(model, folder, execution_device="cpu")


def by_map(model, folder):
    places = {"model.embed_tokens": "cpu", "model.norm": "disk", "lm_head": "disk"}
    places |= {"model.position": "disk", "model.layers.0": "disk"}
    places |= {"model.layers.1": "cpu", "model.layers.2": "disk"}
    return dispatch_model(model, places, offload_dir=folder)


@all_positions
@pytest.mark.parametrize("offload", [everything, with_buffers, on_disk, by_map])
def test_an_offloaded_model_is_the_plain_one(position, offload, tmp_path):
    model, tokens = make_model(position), random_tokens(2, 8)
    mask = torch.ones_like(tokens)
    mask[0, :2] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    settings |= {"output_logits": True, "return_dict_in_generate": True}

    def outputs():
        with torch.no_grad():
            whole = model(tokens, labels=tokens)
            text = model.generate(tokens, **settings)
        return whole.loss, whole.logits, text.sequences, *text.logits

    plain = outputs()
    model = offload(model, tmp_path)
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(outputs(), plain)
