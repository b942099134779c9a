"""What the speed of encodings is measured with and written down as; never how fast they are."""

import csv
import json
import math
import re
from pathlib import Path

import pytest
import torch
from conftest import make_config
from torch.utils.flop_counter import FlopCounterMode

from tape.analysis import formulas, measuring, peers, throughput
from tape.analysis.comparison import (
    RAN_OUT,
    Comparison,
    Method,
    inability,
    measure,
    methods,
)
from tape.analysis.decoders import decoder, library_llama, random_tokens
from tape.analysis.measuring import in_turn, observed
from tape.analysis.speed import main, parse, plan
from tape.analysis.speed_table import Result, beside_paper, by_length
from tape.analysis.workloads import WORK, Load, attention_layer, last_call, of_layer, of_model
from tape.evaluation.tables import read_table

SHAPE = {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": None, "mlp": 48, "vocabulary": 61}
TINY = [str(x) for k, v in SHAPE.items() if v is not None for x in (f"--{k}", v)]
COLUMNS = tuple(Result.__dataclass_fields__)


def load_of(work, length=12, batch=2, new=3):
    return Load(work, batch, length, new, torch.float32, compiled=False)


def model_of(name, work="forward", backend="sdpa"):
    load = load_of(work)
    config = Comparison("layer", backend, load).config(SHAPE, name)
    return load.ready(decoder(config, backend)), load


@pytest.fixture
def speed(tmp_path, monkeypatch, capsys):
    """Run the command in a folder of its own; what it prints and its table."""
    monkeypatch.chdir(tmp_path)

    def speed(*arguments):
        main([*TINY, "--new", "2", "--out", "speed", *map(str, arguments)])
        return capsys.readouterr().out, read_table(Path("speed/speed.csv"), COLUMNS)

    return speed


@pytest.mark.parametrize(
    "asked",
    [
        ("--scopes", "layer", "--work", "forward", "--lengths", 8, 16),
        ("--lengths", 8, "--encodings", "rope", "fire", "tape"),
    ],
    ids=["all encodings", "all work"],
)
def test_every_encoding_and_kernel_has_a_row_that_says_what_ran(speed, asked):
    printed, rows = speed(*asked)
    assert len(rows) == len({tuple(row.values())[:9] for row in rows})
    arguments = parse([str(x) for x in asked])
    asked = {
        (c.scope, c.load.work, c.backend, str(c.load.length), m.about, m.implementation)
        for c in plan(arguments)
        for m in methods(c.scope, arguments.encodings, arguments.peers)
    }
    key = ("scope", "work", "backend", "length", "encoding", "implementation")
    assert {tuple(row[k] for k in key) for row in rows} == asked
    for row in rows:
        numbers = [row[c] for c in COLUMNS[COLUMNS.index("milliseconds") : -2] if c != "peer_ratio"]
        assert all(numbers) != bool(row["note"]) and any(numbers) != bool(row["note"]), row
        if row["note"]:
            continue
        assert all(math.isfinite(float(x)) and float(x) > 0 for x in numbers), row
        first, median, third = (
            float(row[f"milliseconds{part}"]) for part in ("_first", "", "_third")
        )
        assert first <= median <= third
        assert bool(row["peer_ratio"]) == (row["implementation"] != "here")
        if row["backend"] == "eager":
            assert not row["kernels"]
        if row["backend"] == "sdpa" and row["encoding"] == "rope":
            assert "_scaled_dot_product_" in row["kernels"]
    flash = [row["note"] for row in rows if row["backend"] == "flash_attention_2"]
    if not torch.cuda.is_available():
        assert all(flash), flash
        flex = [r for r in rows if r["backend"] == "flex_attention" and r["work"] == "training"]
        assert all(row["note"] for row in flex)
    assert Path("speed/speed.md").read_text() in printed
    for name in (
        f"speed_{scope}_{kernel}" for scope in arguments.scopes for kernel in ("eager", "sdpa")
    ):
        assert Path(f"speed/{name}.png").stat().st_size > 1000
        assert Path(f"speed/{name}.svg").stat().st_size > 1000


SHORT = ("--lengths", 8, "--scopes", "layer", "--backends", "sdpa")
SHORT += ("--encodings", "rope", "tape", "--peers")


def test_a_run_that_ends_early_is_continued(speed, monkeypatch):
    parts = Path("speed/shard-1-of-1/parts.jsonl")
    with pytest.raises(SystemExit) as stopped:
        speed(*SHORT, "--seconds", 1e-9)
    assert stopped.value.code == 75
    begun = parts.read_text().splitlines()
    assert len(begun) - 1 == 1 and Path("speed/speed.csv").exists()
    with parts.open("a") as file:
        file.write('{"batch": 3, "peak"')  # a kill in the middle of a line
    _, rows = speed(*SHORT)
    lines = parts.read_text().splitlines()
    assert lines[: len(begun)] == begun  # nothing is measured twice
    assert [json.loads(line)["batch"] for line in lines[1:]] == list(range(4))
    monkeypatch.setattr("tape.analysis.speed.measure", None)
    assert speed(*SHORT)[1] == rows  # nor measured again


def test_another_shape_or_machine_is_another_folder(speed, monkeypatch):
    few = (*SHORT, "--work", "forward")
    speed(*few)
    before = {path: path.read_bytes() for path in Path("speed").rglob("*.*")}
    with pytest.raises(SystemExit, match=r"^error: .*batch: 1 -> 2.*give this one another place"):
        speed(*few, "--batch", 2)
    monkeypatch.setattr("tape.analysis.speed.machine", lambda: "an abacus")
    with pytest.raises(SystemExit, match=r"machine: .* -> an abacus"):
        speed(*few)
    assert {path: path.read_bytes() for path in Path("speed").rglob("*.*")} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--lengths 0", "--lengths=0 must be an integer in 1..10000000"),
        ("--lengths 8 8", "--lengths 8 8: duplicate value"),
        ("--encodings tape", "--encodings tape: times are given beside those of rope; add it"),
        ("--rounds 6", "--rounds=6 must be an integer in 7..1000000"),
        ("--heads 5", "--hidden 32 must be a multiple of --heads 5"),
        ("--hidden 36 --heads 12", "rotary positions need pairs of channels: head_dim=3"),
        ("--seconds -1", "--seconds -1.0 must be above 0"),
        ("--out file", "--out file is a file; give a folder"),
    ],
)
def test_what_cannot_be_measured_is_refused(speed, arguments, message):
    Path("file").touch()
    with pytest.raises(SystemExit, match=f"^error: {re.escape(message)}"):
        speed(*arguments.split())
    assert [path.name for path in Path().iterdir()] == ["file"]


@pytest.mark.parametrize("work", ["forward", "training"])
@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "fire", "t5", "tape"])
def test_a_layer_by_itself_is_the_layer_in_its_decoder(name, work):
    model, load = model_of(name, work)
    layer, found = attention_layer(model, load), []
    decoding = model.model.layers[1]
    decoding.self_attn.register_forward_hook(lambda *_: found.append(_[-1]))
    with torch.no_grad():
        model(random_tokens(model, load.batch, load.length), use_cache=False)
        outputs = layer.module(*layer.inputs, None)
    attended, attended_e, _ = found[0]
    torch.testing.assert_close(outputs[0], attended, atol=0, rtol=0)
    if name == "tape":  # after the MLP of the layer, whose output is random here
        e, mlp_out = layer.inputs[1:]
        torch.testing.assert_close(outputs[1], decoding.context(e, attended_e, mlp_out))


@pytest.mark.parametrize(
    ("peer", "name"), [(peer, name) for peer, names in peers.PEERS.items() for name in names]
)
def test_peers_compute_the_same(peer, name):
    if peers.version(peer) is None:
        pytest.skip(f"{peer} is not installed")
    model, load = model_of(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6.0  # so that attention is not flat
    if peer == "transformers":
        layer = peers.llama_layer(library_llama(model), load)
    else:
        layer = peers.building_block(peer, model, load)
    ours = attention_layer(model, load)
    with torch.no_grad():
        expected = ours.module(*ours.inputs, None)[0]
        found = layer.module(*layer.inputs, None)[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_decoding_can_be_done_again(backend):
    """The cache is as before, and so is what comes out."""
    model, load = model_of("tape", "decoding", backend)
    layer = attention_layer(model, load)
    once = of_layer(layer, load, model.config)
    before = [x.clone() for x in (layer.cache.layers[1].keys, layer.cache.layers[1].values)]
    for _ in range(2):
        once()
        after = layer.cache.layers[1]
        for x, y in zip(before, (after.keys, after.values), strict=True):
            assert torch.equal(x, y)
    (arguments, _, cache) = last_call(model, load)
    assert arguments[0].shape[1] == 1 and cache.get_seq_length() == load.length


@pytest.mark.parametrize("name", ["rope", "fire", "tape"])
def test_arithmetic_is_what_torch_counts(name):
    """Under eager attention, which computes all pairs; products with T = 1 too."""
    for work in WORK:
        model, load = model_of(name, work, "eager")
        once = of_model(model, load)
        once()
        with FlopCounterMode(display=False) as counter:
            once()
        compare = Comparison("model", "eager", load)
        config = model.config
        operations = throughput.of_model(config)
        logits = config.hidden_size * config.vocab_size
        macs = throughput.multiply_adds(operations, load, logits, causal=False)
        counted = counter.get_total_flops() // 2
        if work == "training":  # gradients of inputs are not needed everywhere
            assert 0.8 * macs < counted <= macs
        else:
            assert counted == macs == compare.multiply_adds(Method(name), SHAPE, causal=False)


@pytest.mark.parametrize("name", ["rope", "fire", "tape"])
def test_arithmetic_of_a_layer_is_what_torch_counts(name):
    model, load = model_of(name, "forward", "eager")
    for update in (True, False) if name == "tape" else (True,):
        layer = attention_layer(model, load, update)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            layer.module(*layer.inputs, None)
        compare = Comparison("layer", "eager", load)
        method = Method(name, update=update)
        macs = compare.multiply_adds(method, SHAPE, causal=False)
        assert macs == counter.get_total_flops() // 2
        assert macs > compare.multiply_adds(method, SHAPE, causal=True)


def test_the_papers_layer():
    config = make_config("tape", hidden_size=768, num_attention_heads=12)
    parts = formulas.of_tape(config, 1024)
    load = Load("forward", 1, 1024, 1, torch.float32, False)
    whole = throughput.multiply_adds(throughput.of_layer(config), load, 0, causal=False)
    own = 4 * 768**2 * 1024 + 2 * 768 * 1024**2
    assert whole == own + sum(parts.values()) // (config.num_hidden_layers - 1)


def test_memory_is_that_of_tensors_at_most():
    def work():
        a = torch.zeros(1000)
        b = torch.zeros(3000)
        del a
        return torch.zeros(500), b

    kept = {}

    def replace():  # frees what was there before it was watched
        kept["x"] = torch.zeros(2000)

    replace()
    if measuring.DEVICE.type == "cpu":
        assert observed(work)[0] == 4 * 4000
        assert observed(replace)[0] == 4 * 2000


def test_what_does_not_fit_is_left_out():
    with measuring.limit_memory(), pytest.raises(Exception) as failed:
        torch.empty(2**45, device=measuring.DEVICE)
    assert inability(failed.value) == "does not fit into memory"
    assert inability(RuntimeError("shapes differ")) is None
    assert inability(ValueError("takes float16\nand bfloat16")) == "takes float16"


def test_memory_that_runs_out_later_is_a_row_too(monkeypatch):
    """Beside others, or in the rounds: nothing is measured, and what happened is said."""
    work, done = Comparison.work, []

    def starved(self, method, shape):
        if method.encoding == "tape":
            raise torch.OutOfMemoryError
        ready = work(self, method, shape)

        def once():
            done.append(method)
            if len(done) == 20:
                raise torch.OutOfMemoryError
            ready()

        return once

    monkeypatch.setattr(Comparison, "work", starved)
    taking_part = [Method(name) for name in ("tape", "rope", "nope")]
    comparison = Comparison("layer", "sdpa", load_of("forward"))
    rows = measure(comparison, taking_part, SHAPE, 7, lambda _: None)
    assert [row["seconds"] for row in rows] == [[], [], []]
    assert [row["note"] for row in rows] == ["does not fit into memory", RAN_OUT, RAN_OUT]
    done.clear()
    rows = measure(comparison, taking_part[::-1], SHAPE, 7, lambda _: None)
    assert rows[-1]["note"].startswith("does not fit into memory beside the methods before it")


def test_unlike_kernels_are_not_compared():
    comparison = Comparison("layer", "flex_attention", load_of("forward"))
    with pytest.raises(ValueError, match="transformers compiles flex_attention itself"):
        comparison.work(Method("rope", "transformers"), SHAPE)


def test_unfused_attention_is_no_fused_kernel():
    """torch's name for it is like the others'."""
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    mask = torch.zeros(1, 1, 4, 4, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert observed(lambda: attend(q, q, q, attn_mask=mask))[1] == []
    assert observed(lambda: attend(q, q, q, is_causal=True))[1] != []


def test_short_work_is_done_several_times():
    done = {"a": 0, "b": 0}

    def count(name):
        done[name] += 1

    in_turn({name: lambda name=name: count(name) for name in done}, 7, warm_up=1, least=0.001)
    assert done["a"] > 8 and done["b"] > 8


def test_the_table_shows_ratios_and_the_longest_length():
    about = dict.fromkeys(("compiled", "dtype", "implementation"), "here")
    about |= {"scope": "layer", "work": "forward", "backend": "sdpa", "batch": 1, "rounds": 7}
    speed = {"milliseconds": 2.0, "tokens_per_second": 4000.0, "tflops": 0.5, "mfu": 0.25}
    speed |= {"ratio": 1.5, "ratio_first": 1.25, "ratio_third": 2.0, "memory_mib": 3.0}
    shown = by_length([Result(**about, **speed, encoding="tape", length=n) for n in (8, 1024)])
    assert shown.splitlines()[0].startswith("| encoding | ms, 8 | ms, 1,024 | tokens/s |")
    cell = "2 (1.50; 1.25 to 2.00)"
    assert (
        shown.splitlines()[2] == f"| tape | {cell} | {cell} | 4,000 | 0.5 | 25.0% | 3.0 | unfused |"
    )


def test_the_papers_table_4_is_beside_a_layer_at_its_length():
    """The fastest fused kernel of each, and for the row that is not fused eager attention."""
    times = {
        ("rope", "sdpa", "no", 1024): 2.0,
        ("rope", "flex_attention", "yes", 1024): 1.0,
        ("rope", "eager", "no", 1024): 4.0,
        ("rope", "sdpa", "no", 512): 0.1,
        ("tape", "sdpa", "no", 1024): 1.25,
        ("tape", "eager", "no", 1024): 3.0,
        ("fire", "eager", "no", 1024): 9.0,
    }
    found = [
        Result("layer", "forward", name, "here", *run, "float32", 1, length, 7, milliseconds=time)
        for (name, *run, length), time in times.items()
    ]
    assert beside_paper(found).splitlines()[2:] == [
        "| RoPE | 0.208 | 1.00 | 1 | 1.00 | flex_attention, compiled |",
        "| TAPE | 0.256 | 1.23 | 1.25 | 1.25 | sdpa |",
        "| TAPE, not fused | 0.563 | 2.71 | 3 | 3.00 | eager |",
        "| FIRE | 0.556 | 2.67 |  |  |  |",
        "| T5 bias | 0.690 | 3.32 |  |  |  |",
    ]
    assert beside_paper([result for result in found if result.length == 512]) is None


@pytest.mark.slow
def test_compiled_layers_and_decoders(speed):
    few = ("--lengths", 8, "--backends", "sdpa", "--encodings", "rope", "tape")
    _, rows = speed(*few, "--peers", "transformers", "--compiled", "yes")
    assert {row["compiled"] for row in rows} == {"yes"}
    assert not [row for row in rows if row["note"]]


def test_the_csv_is_read_by_others(speed):
    speed(*SHORT, "--work", "forward")
    with Path("speed/speed.csv").open(newline="") as file:
        tape = next(row for row in csv.DictReader(file) if row["encoding"] == "tape")
    load = Load("forward", 1, 8, 1, torch.float32, False)
    macs = Comparison("layer", "sdpa", load).multiply_adds(Method("tape"), SHAPE, False)
    seconds = float(tape["milliseconds"]) / 1e3
    assert float(tape["tflops"]) == pytest.approx(2 * macs / seconds / 1e12, rel=1e-4)
    assert float(tape["tokens_per_second"]) == pytest.approx(8 / seconds, rel=1e-4)
    assert float(tape["mfu"]) * float(tape["peak_tflops"]) == pytest.approx(
        float(tape["tflops"]), rel=1e-4
    )
