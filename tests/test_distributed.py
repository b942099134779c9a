"""Several processes on CPUs (gloo) give the numbers of one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import composed, make_model
from shards import write_shards
from trained import assert_same_weights, checkpoint_names, losses, weights
from transformers import default_data_collator
from unequal_labels import sequence

from tape.commands import train
from tape.model.checkpoint import fingerprint, load_model
from tape.model.sequence_parallel import shard_sequence
from tape.runs.metrics import read_metrics
from tape.training.arguments import check_training, sequences_per_step, share_sequences, sharing
from tape.training.trainer import collated

ROOT = Path(__file__).parent.parent
# Five validation sequences divide by nothing.
SETTINGS = ["position=tape", "trainer.logging_steps=1", "eval_blocks=5"]
STEPS = ["trainer.max_steps=8", "trainer.save_steps=4", "trainer.eval_steps=4"]


@pytest.fixture
def start_two(text, cache, tmp_path):
    """Starts the quick experiment in processes of its own, in each of two with half of the batch;
    returns its folder. With `stop`, it is told to stop after its first step."""

    def start(*settings, data=("data=text", f"data.files={text}"), processes=2, stop=False):
        given = [f"cache_dir={cache}", f"output_dir={tmp_path / 'two'}", "vocab_size=300"]
        given += [*data, *SETTINGS, *STEPS, "trainer.per_device_train_batch_size=2", *settings]
        run = subprocess.Popen(
            ["bash", "script/train.sh", "experiment=quick", *given],
            cwd=ROOT,
            env={**os.environ, "NGPUS": str(processes), "TYPE": "tape", "VIRTUAL_ENV": sys.prefix},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
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


def assert_same_logits(one, two):
    models = [load_model(folder) for folder in (one, two)]
    size = models[0].config.vocab_size
    tokens = torch.randint(size, (2, 40), generator=torch.Generator().manual_seed(0))
    logits = [model(tokens).logits for model in models]
    torch.testing.assert_close(logits[0], logits[1], atol=2e-4, rtol=0)


def assert_same_losses(one, two, within=1e-5):
    assert len(losses(one)) == len(losses(two)) == 8
    for (step, expected), (other_step, loss) in zip(losses(one), losses(two), strict=True):
        assert step == other_step and loss == pytest.approx(expected, abs=within)


UNEQUAL = ["task._target_=tests.unequal_labels.UnequalLabels", "length=32"]
UNEQUAL += ["trainer.gradient_accumulation_steps=2", "trainer.per_device_eval_batch_size=2"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ddp", "fsdp2"])
def test_two_processes_equal_one(start, start_two, tmp_path, launcher):
    """Every label counts alike, in training and validation."""
    one = start(*SETTINGS, *UNEQUAL, "optimizer=muon", folder=tmp_path / "one")
    two = start_two(f"launcher={launcher}", *UNEQUAL, "optimizer=muon")
    assert_same_losses(one, two)
    assert_same_logits(one, two)
    for folder in (one, two):
        expected = loss_of_each_label(load_model(folder), map(sequence, range(5)))
        assert len(evaluations(folder)) == 2
        assert evaluations(folder)[-1] == pytest.approx(expected, abs=1e-6)
    assert checkpoint_names(two) == ["checkpoint-4", "checkpoint-8"]
    assert_same_weights(weights(two), weights(two / "checkpoint-8"))
    # Positions and dropout: processes draw numbers of their own.
    files = [two / "checkpoint-8" / f"rng_state_{rank}.pth" for rank in (0, 1)]
    first, second = (torch.load(file, weights_only=False)["cpu"] for file in files)
    assert not torch.equal(first, second)


def evaluations(folder):
    rows = read_metrics(folder / "metrics.jsonl")
    return [row["eval_loss"] for row in rows if "eval_loss" in row]


@torch.no_grad()
def loss_of_each_label(model, sequences):
    """The mean over all labels, one after the other."""
    losses = []
    for example in sequences:
        logits = model(example["input_ids"][None]).logits[0].double()
        for place, label in enumerate(example["labels"].tolist()):
            if place and label != -100:
                losses.append(-logits[place - 1].log_softmax(-1)[label].item())
    return sum(losses) / len(losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "split", "own"),
    [
        (2, ("per_device_train_batch_size=4",), ("position=tape",)),
        (2, ("gradient_accumulation_steps=2", "per_device_eval_batch_size=2"), ("position=fox",)),
        (4, (), ("position=rope", "+trainer.gradient_checkpointing=true")),
        (4, (), ("task._target_=tests.unequal_labels.UnequalLabels", "length=32")),
    ],
)
def test_training_with_shared_sequences_equals_one_process(
    start, start_two, tmp_path, processes, split, own
):
    one = start(*SETTINGS, *own, folder=tmp_path / "one")
    shared = ["launcher=fsdp2", "sequence_parallel=2", *(f"trainer.{each}" for each in split)]
    two = start_two(*shared, *own, processes=processes)
    assert_same_losses(one, two)
    assert evaluations(one) == pytest.approx(evaluations(two), abs=1e-5)
    assert_same_logits(one, two)


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
@pytest.mark.parametrize(
    ("processes", "shared", "further"),
    [
        (2, (), ("data.documents=mask",)),
        (2, ("sequence_parallel=2",), ()),
        (4, ("sequence_parallel=2",), ()),
    ],
)
def test_processes_share_a_stream(start_two, cache, tmp_path, processes, shared, further):
    shards = write_shards(tmp_path / "en")
    data = ("data=c4", f"data.dir={shards}", "data.window=7", *further)
    settings = ["experiment=quick", *data, f"cache_dir={cache}", f"output_dir={tmp_path / 'one'}"]
    train.run(composed(*settings, "vocab_size=300", *STEPS, *SETTINGS))
    sequences = 4 if shared and processes == 2 else 2
    own = [f"trainer.per_device_train_batch_size={sequences}", *shared]
    own += ["launcher=fsdp2"] if shared else []
    two = start_two(*own, data=data, processes=processes)
    assert_same_losses(tmp_path / "one", two)
    assert evaluations(tmp_path / "one") == pytest.approx(evaluations(two), abs=1e-5)
    if shared:  # goes on where it stopped
        (two / "model.safetensors").unlink()
        shutil.rmtree(two / "checkpoint-8")
        start_two(*own, data=data, processes=processes)
        assert_same_losses(tmp_path / "one", two)


def verdicts_of(script, processes, *words):
    """The lines that a script of the tests prints, in processes of torchrun."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    outcome = subprocess.run(
        [sys.executable, *start, f"tests/{script}.py", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout.splitlines()


@pytest.mark.slow
def test_tensor_parallelism_equals_one_process_or_is_refused(tmp_path):
    folders = [str(tmp_path / name) for name in ("untied", "tied", "tape")]
    models = [make_model("rope"), make_model("rope", tie_word_embeddings=True), make_model("tape")]
    for model, folder in zip(models, folders, strict=True):
        model.save_pretrained(folder)
    untied, tied, tape = verdicts_of("tensor_parallel", 2, *folders)
    assert untied == tied == "equal" and tape.startswith("tp_size=2 with position 'tape', ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "encodings"),
    [
        (2, "tape fox rope nope alibi fire t5 learned abacus carope fope rope_gain"),
        (2, "grape_m_contextual grape_ap repo wall_scalar extended_dca"),
        (4, "tape rope alibi fire nope fox xpos kerple"),
    ],
)
def test_processes_that_share_a_text_equal_one(processes, encodings):
    allowed, refused = encodings.split(), ["randpe", "path"] if processes == 2 else []
    found = verdicts_of("sequence_parallel", processes, *allowed, *refused)
    assert found[: len(allowed)] == ["equal"] * len(allowed)
    for name, verdict in zip(refused, found[len(allowed) :], strict=True):
        assert f"with position '{name}': allowed" in verdict


@pytest.fixture
def two_processes(monkeypatch):
    """A group, as far as is asked for before any message is sent."""
    monkeypatch.setattr("tape.model.sequence_parallel.dist.get_world_size", lambda group: 2)
    monkeypatch.setattr("tape.model.sequence_parallel.dist.get_rank", lambda group: 0)
    return object()


def test_texts_and_heads_that_do_not_divide_are_refused(two_processes):
    model = make_model("rope", hidden_size=24, num_attention_heads=3, num_key_value_heads=3)
    with pytest.raises(ValueError, match=r"over 2 processes: num_attention_heads=3 must be a mult"):
        shard_sequence(model.model, two_processes)
    model = make_model("rope", num_key_value_heads=1)
    with pytest.raises(ValueError, match=r"num_key_value_heads=1 must be a multiple of 2"):
        shard_sequence(model.model, two_processes)
    model = make_model("rope")
    model.set_shifted_attention(4)
    with pytest.raises(ValueError, match="shifted groups: choose one"):
        shard_sequence(model.model, two_processes)
    model.set_shifted_attention(None)
    shard_sequence(model.model, two_processes)
    with pytest.raises(ValueError, match=r"15 tokens over 2 processes: .*pad the batch"):
        model.model.shard.part(15)
    with pytest.raises(ValueError, match="with a cache: give use_cache=False"):
        model.model.shard.kernels({}, object())
    with pytest.raises(ValueError, match="with output_attentions=True: it has no weights"):
        model.model.shard.kernels({}, None, True)
    with pytest.raises(ValueError, match="with sequence parallelism: choose one"):
        model.set_shifted_attention(4)
    shard_sequence(model.model, None)
    assert model.model.shard is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["sequence_parallel=2"], "without sharded weights: give launcher=fsdp2"),
        (["sequence_parallel=2", "launcher=fsdp2"], "with 1 process: start a multiple of 2, as in"),
        (["sequence_parallel=0"], "must be an integer >= 1"),
    ],
)
def test_sequences_that_cannot_be_shared_are_refused(start, given, reason):
    with pytest.raises(ValueError, match=reason):
        start(*given)


def test_processes_that_do_not_see_each_other_are_refused(tmp_path, monkeypatch):
    """As torchrun starts them on a CPU without use_cpu."""
    arguments = train.instantiate(
        train.settings_of(composed())["trainer"] | {"output_dir": str(tmp_path)}
    )
    assert arguments.world_size == 1
    check_training(arguments)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"1 of 2 processes .* give \+trainer\.use_cpu"):
        check_training(arguments)


def test_what_the_processes_of_a_group_need():
    arguments = SimpleNamespace(fsdp_plugin_args={}, world_size=4, parallelism_config=None)
    arguments.accelerator_config = SimpleNamespace(dispatch_batches=None)
    arguments.train_batch_size, arguments.gradient_accumulation_steps = 3, 5
    with pytest.raises(ValueError, match=r"sequence_parallel=2 with length=31: .* multiple of 2"):
        share_sequences(arguments, 2, 31)
    assert sequences_per_step(arguments) == 60
    share_sequences(arguments, 2, 32)
    assert sequences_per_step(arguments) == 30 and sharing(arguments) == 2


def test_batches_are_filled_up_for_all_processes():
    sequences = [{"input_ids": torch.arange(5), "labels": torch.arange(5)}] * 2
    for mask in (torch.ones(5), torch.tensor([0, 1, 1, 1, 1])):
        given = [each | {"attention_mask": mask} for each in sequences]
        batch = collated(given, default_data_collator, 4)
        assert batch["input_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 0, 0]] * 2
        assert batch["labels"].tolist() == [[0, 1, 2, 3, 4, -100, -100, -100]] * 2
        assert batch["predicted_positions"].tolist() == [[1, 2, 3, 4]] * 2
        if mask.all():  # tokens never attend to later ones
            assert "attention_mask" not in batch
        else:
            assert batch["attention_mask"].tolist() == [[0, 1, 1, 1, 1, 0, 0, 0]] * 2
