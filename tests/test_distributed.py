"""Several processes on CPUs (gloo) give the numbers of one."""

import sys
from types import SimpleNamespace

import pytest
import torch
from accelerate import ParallelismConfig
from commands import ROOT
from conftest import composed, refuses
from script_folder import start as start_script
from shards import write_shards
from trained import assert_same_weights, checkpoint_names, losses, weights
from unequal_labels import sequence

from tape import TapeForCausalLM
from tape.cli import train
from tape.model.checkpoint import fingerprint, load_model
from tape.training.arguments import check_training

# Five validation sequences divide by nothing.
SETTINGS = ["position=tape", "trainer.logging_steps=1", "eval_blocks=5"]
STEPS = ["trainer.max_steps=8", "trainer.save_steps=4", "trainer.eval_steps=4"]


@pytest.fixture
def start_two(text, cache, tmp_path):
    """Starts the quick experiment in processes of its own, in each of two with half of the batch;
    returns its folder. With `stop`, it is told to stop after its first step."""

    def start(*settings, data=("data=text", f"data.files={text}"), stop=False):
        given = [f"cache_dir={cache}", f"output_dir={tmp_path / 'two'}", "vocab_size=300"]
        given += [*data, *SETTINGS, *STEPS, "trainer.per_device_train_batch_size=2", *settings]
        variables = {"NGPUS": "2", "TYPE": "tape", "VIRTUAL_ENV": sys.prefix}
        run = start_script(ROOT, "train.sh", "experiment=quick", *given, **variables)
        said = ""
        for line in run.stdout:
            said += line
            if stop and line.startswith("step 1/"):
                run.terminate()
        assert run.wait() == (75 if stop else 0), said
        sentence = "which is saved: the same command continues" if stop else "step 8/8  loss"
        assert said.count(sentence) == 1 and "Traceback" not in said, said  # one process speaks
        return tmp_path / "two"

    return start


@pytest.mark.slow
def test_processes_that_are_told_to_stop_print_no_traceback(start_two):
    start_two("trainer.max_steps=500", stop=True)


def assert_same_losses(one, two, within=1e-5):
    assert len(losses(one)) == len(losses(two)) == 8
    for name in ("loss", "eval_loss"):
        assert dict(losses(two, name)) == pytest.approx(dict(losses(one, name)), abs=within)


UNEQUAL = ["task._target_=tests.unequal_labels.UnequalLabels", "length=32"]
UNEQUAL += ["trainer.gradient_accumulation_steps=2", "trainer.per_device_eval_batch_size=2"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
def test_two_processes_equal_one(start, start_two, tmp_path, launcher):
    one = start(*SETTINGS, *UNEQUAL, "optimizer=muon", folder=tmp_path / "one")
    two = start_two(f"launcher={launcher}", *UNEQUAL, "optimizer=muon")
    assert_same_losses(one, two)
    for folder in (one, two):
        expected = loss_of_each_label(load_model(folder), map(sequence, range(5)))
        assert len(losses(folder, "eval_loss")) == 2
        assert losses(folder, "eval_loss")[-1][1] == pytest.approx(expected, abs=1e-6)
    assert checkpoint_names(two) == ["checkpoint-4", "checkpoint-8"]
    assert_same_weights(weights(two), weights(two / "checkpoint-8"))
    # Positions and dropout: processes draw numbers of their own.
    files = [two / "checkpoint-8" / f"rng_state_{rank}.pth" for rank in (0, 1)]
    assert not torch.equal(*(torch.load(file, weights_only=False)["cpu"] for file in files))


@torch.no_grad()
def loss_of_each_label(model, sequences):
    losses = []
    for example in sequences:
        logs = model(example["input_ids"][None]).logits[0].double().log_softmax(-1)
        labels = enumerate(example["labels"][1:].tolist())
        losses += [-logs[place, label].item() for place, label in labels if label != -100]
    return sum(losses) / len(losses)


@pytest.mark.slow
def test_sharding_changes_no_bit_of_an_adapted_base(start, start_two, tmp_path):
    """In bfloat16, which is near the one process."""
    base = start("position=rope", "trainer.max_steps=1", folder=tmp_path / "base")
    adapting = ["peft=adape_lora", "position=tape", f"base_model={base}", "frozen=bfloat16"]
    adapting += ["trainer.bf16=true", "+trainer.gradient_checkpointing=true"]
    adapting.append("trainer.max_grad_norm=0")  # whose norm is a sum in another order
    one = start(*SETTINGS, *adapting, folder=tmp_path / "one")
    hashes = set()
    for launcher in ("ddp", "fsdp2"):
        folder = start_two(f"launcher={launcher}", *adapting)
        assert_same_losses(one, folder, within=1e-3)
        hashes.add(fingerprint(folder))
        folder.rename(tmp_path / launcher)
    assert len(hashes) == 1


@pytest.mark.slow
def test_processes_share_a_stream(start_two, cache, tmp_path):
    shards = write_shards(tmp_path / "en")
    data = ("data=c4", f"data.dir={shards}", "data.window=7", "data.documents=mask")
    settings = ["experiment=quick", *data, f"cache_dir={cache}", f"output_dir={tmp_path / 'one'}"]
    train.run(composed(*settings, "vocab_size=300", *STEPS, *SETTINGS))
    two = start_two(data=data)
    assert_same_losses(tmp_path / "one", two)


def test_parallelism_within_texts_and_layers_is_refused(start, monkeypatch):
    """transformers' plans would split neither the encoding's parameters nor its state."""
    with pytest.raises(ValueError, match="layers cannot be split"):
        TapeForCausalLM.maybe_distribute_model(None, SimpleNamespace(tp_size=2), None)
    monkeypatch.setattr(ParallelismConfig, "get_device_mesh", lambda *given: None)
    monkeypatch.setattr(ParallelismConfig, "_validate_accelerator", lambda *given: None)
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")  # as `accelerate launch` does
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "2")
    refuses("the processes of a run share no sequences and no heads", start)


def test_processes_that_do_not_see_each_other_are_refused(tmp_path, monkeypatch):
    trainer = train.settings_of(composed())["trainer"]
    arguments = train.instantiate(trainer | {"output_dir": str(tmp_path)})
    assert arguments.world_size == 1
    check_training(arguments)
    monkeypatch.setenv("WORLD_SIZE", "2")
    refuses(r"1 of 2 processes .* give \+trainer\.use_cpu", check_training, arguments)
