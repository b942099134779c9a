"""What the speed of encodings is measured with, timed work against the models, and what is written
down; never how fast they are."""

import math
import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest import mock

import pandas as pd
import pytest
import torch
from commands import ROOT, tape
from conftest import refuses
from pages import check_shown

from tape.analysis import growth
from tape.analysis import speed as bench
from tape.analysis.workloads import CASES, DEVICE, Load, attention_layer, llama_layer, rewind
from tape.cli import analyse as parsers
from tape.encodings import ENCODINGS
from tape.evaluation.tables import markdown_table


def test_methods_take_turns_in_alternating_order():
    """Work that is short is repeated within its turn."""
    order = []
    work = {name: lambda name=name: order.append(name) for name in "abc"}
    times = bench.in_turn(work, 3, warm_up=0, least=0.0)
    assert "".join(order) == "cbaabccba" and {len(each) for each in times.values()} == {3}
    order.clear()
    bench.in_turn(work, 7, warm_up=3, least=0.001)
    assert min(order.count(name) for name in work) > 8


@pytest.mark.skipif(bench.GPU, reason="counts memory of the GPU")
def test_memory_is_that_of_tensors_at_most():
    def work():
        a, b = torch.zeros(1000), torch.zeros(3000)
        del a
        return torch.zeros(500), b

    assert bench.observed(work)[0] == 4 * 4000


def test_unfused_attention_is_no_fused_kernel():
    """torch's name for it is like the others'."""
    q = torch.randn(1, 1, 4, 8, requires_grad=True)
    mask = torch.zeros(1, 1, 4, 4, requires_grad=True)
    attend = torch.nn.functional.scaled_dot_product_attention
    assert bench.observed(lambda: attend(q, q, q, attn_mask=mask))[1] == []
    assert bench.observed(lambda: attend(q, q, q, is_causal=True))[1] != []


def test_what_cannot_run_is_left_out(monkeypatch):
    """Beside others, or in the rounds: the reason is given in place of numbers."""
    with pytest.raises(RuntimeError) as failed:
        torch.empty(2**45, device=DEVICE)
    assert bench.inability(failed.value) == bench.TOO_LARGE
    assert bench.inability(ValueError("takes float16\nand bfloat16")) == "takes float16"
    with pytest.raises(RuntimeError, match="shapes differ"):
        bench.inability(RuntimeError("shapes differ"))

    def work(method):
        done = iter(range({"large": 0, "growing": 5, "small": 10**9}[method]))
        return lambda: next(done)

    monkeypatch.setattr(bench, "inability", lambda error: bench.TOO_LARGE)
    rows = bench.measure("", ["large", "small"], work, 7)
    assert [*rows.note] == [bench.TOO_LARGE] + [""] * 7 and rows.seconds[1:].notna().all()
    rows = bench.measure("", ["small", "growing"], work, 7)
    assert [*rows.note] == [bench.TOO_LARGE] * 2 and rows.seconds.isna().all()


def parse(words):
    return bench.on_this_device(parsers.speed(words))


@pytest.fixture
def speed(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder of its own; returns what it prints and its table."""
    monkeypatch.chdir(tmp_path)

    def speed(words, out="speed"):
        tape("speed", *shlex.split(f"--shape tiny --new 2 --rounds 7 --out {out} {words}"))
        found = pd.read_csv(Path(out, "speed.csv"), keep_default_na=False)
        return capsys.readouterr().out, found

    return speed


@pytest.mark.parametrize("warm_up", [0, 2])
def test_work_is_warmed_up_as_often_as_asked(warm_up, speed, monkeypatch, undrawn):
    work = mock.Mock()
    monkeypatch.setitem(CASES, "layer", (lambda load, method: work, *CASES["layer"][1:]))
    monkeypatch.setattr(bench, "LEAST", 0)
    words = f"--case layer --work forward --methods rope --lengths 2 --warm_up {warm_up}"
    speed(f"{words} --backends sdpa")
    assert work.call_count == (warm_up + 1) + (warm_up + 7)


def test_methods_alone_have_a_comparison_each():
    words = "--case layer --methods rope tape --backends sdpa --compiled yes --alone"
    found = [*bench.loads(parse(words.split())).values()]
    assert [methods for _, methods in found] == 2 * [["rope"], ["tape"]]
    assert all(load.compiled for load, _ in found)
    asked = [*words.split(), "--work", "training"]
    assert [*bench.loads(parse(asked)).values()] == found[2:]
    none = shlex.split("--case layer decode --work decoding --methods 'tape without its update'")
    refuses("--methods tape without .*: none has the", bench.loads, parse(none))
    refuses("--work prefill: --case layer has none", bench.loads, parse([*asked, "prefill"]))


def test_growth_is_the_exponent_of_medians():
    """In decoding per token. A method with fewer lengths says so, or has no exponent."""
    found, longest = [], {"a": 128, "b": 64, "c": 32}
    for length, work in product((64, 16, 32, 128), ("training", "decoding")):
        rows = pd.DataFrame(product(longest, (9, 1, 1, 2, 2)), columns=["method", "seconds"])
        rows = rows.assign(memory=length**3, kernels="", note="")
        rows.seconds = (rows.seconds * length**2).where(length <= rows.method.map(longest))
        found.append(bench.results(rows, Load(work, "tiny", "sdpa", 1, length, new=4)))
    every = growth.panels(pd.concat(found))
    cells = [line.split(" | ")[2:] for line in growth.table(every).splitlines()[2:]]
    of_time = [["a", "2.00 |"], ["b", "2.00 (3 lengths) |"]]
    assert cells == [*of_time, ["a", "3.00 |"], ["b", "3.00 (3 lengths) |"], *of_time]
    time, memory, decoding = growth.curves(every).axes
    x = time.lines[0].get_xdata()
    assert [*x] == [16, 32, 64, 128]
    assert memory.lines[0].get_ydata() == pytest.approx(x**3 / 2**20)
    for axes, scale in ((time, 1e3), (decoding, 1e3 / 4)):  # ms
        assert axes.lines[0].get_ydata() == pytest.approx(2 * scale * x**2)
        band = axes.collections[0].get_paths()[0].vertices[:, 1]
        assert (band.min(), band.max()) == pytest.approx((scale * 16**2, 5.5 * scale * 128**2))


@pytest.mark.slow
def test_every_case_has_a_row_per_method_that_says_what_ran(speed):
    asked = f"--case {' '.join(CASES)} --lengths 8 --backends sdpa --methods rope "
    asked += "'tape without its update' llama lora"
    printed, rows = speed(asked)
    found = bench.loads(parse(shlex.split(asked))).values()
    expected = [(x.case, x.work, method) for x, methods in found for method in methods]
    assert [*zip(rows.case, rows.work, rows.method, strict=True)] == expected
    assert {*rows.case} == {*CASES} and {*rows.backend} == {"sdpa"} and {*rows.length} == {8}
    numbers = rows[["milliseconds", "tokens_per_second", "memory_mib", "ratio"]].astype(float)
    assert (numbers > 0).all(axis=None) and (numbers < math.inf).all(axis=None)
    assert (rows.ratio_first <= rows.ratio).all() and (rows.ratio <= rows.ratio_third).all()
    assert rows.kernels[rows.method == "rope"].str.contains("_scaled_dot_product_").all()
    assert Path("speed/speed.md").read_text() in printed


@pytest.mark.slow
def test_all_encodings(speed, monkeypatch):
    """Layers are called for their memory and kernels, or a note says why not."""
    monkeypatch.setattr(bench, "in_turn", lambda work, *_: dict.fromkeys(work, [1.0] * 7))
    _, rows = speed("--case layer --lengths 8 --backends eager")
    assert {*ENCODINGS} < {*rows.method} and (rows.note == "").all()
    flex = "--case layer --lengths 8 --backends flex_attention --methods rope alibi"
    _, rows = speed(flex, out="flex")
    assert all((rows.milliseconds == "") == (rows.note != ""))
    assert torch.cuda.is_available() or (rows[rows.work == "training"].note != "").all()


SHORT = "--case layer --lengths 2 4 8 --backends sdpa --methods rope tape"


def test_a_killed_run_is_continued(speed, monkeypatch, undrawn):
    done, measure = [], bench.measure

    def measure_one(*given):
        if done:
            raise KeyboardInterrupt
        done.append(given[0])
        return measure(*given)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(bench, "measure", measure_one)
        speed(SHORT)
    assert stopped.value.code == 130
    rounds = Path("speed/speed_rounds.csv")
    begun = rounds.read_text()
    assert [*bench.read(rounds).comparison.unique()] == done
    printed, rows = speed(SHORT)
    assert rounds.read_text().startswith(begun)  # nothing is measured twice
    counted = pd.read_csv(rounds).groupby(["comparison", "method"]).size()
    assert {*counted} == {7} and len(counted) == len(rows) == 12
    assert Path("speed/growth.png").exists() and "\n## Growth\n" in printed
    monkeypatch.setattr(bench, "measure", measure_one)
    again, same = speed(SHORT)
    assert again == printed and same.equals(rows)  # nor measured again
    # Other settings, machines and code are another folder.
    before = {path: path.read_bytes() for path in Path("speed").rglob("*.*")}
    with pytest.raises(SystemExit, match=r"^error: .*batch: None -> 2.*give this one another"):
        speed(SHORT + " --batch 2")
    monkeypatch.setattr(bench, "surroundings", lambda: {"commit": "new", "machine": "an abacus"})
    with pytest.raises(SystemExit, match=r"commit: .* -> new; machine: .* -> an abacus"):
        speed(SHORT)
    assert {path: path.read_bytes() for path in Path("speed").rglob("*.*")} == before


TABLE_4 = {"rope": ("RoPE", 0.208), "tape": ("TAPE", 0.256)}  # milliseconds in the paper
TABLE_4 |= {"tape, eager": ("TAPE, not fused", 0.563)}
TABLE_4 |= {"fire": ("FIRE", 0.556), "t5": ("T5 bias", 0.690)}


def documented(name, load):
    """The results of each comparison of committed rows, and the ratios of times to rope's."""
    rows = bench.read(ROOT / "docs" / "results" / name / "rounds.csv")
    for title, own in rows.groupby("comparison", sort=False):
        found = bench.results(own, load)
        ends = zip(found.ratio, found.ratio_first, found.ratio_third, strict=True)
        yield title, found, [f"{x:.2f} ({low:.2f} to {high:.2f})" for x, low, high in ends]


def test_the_documented_comparison_with_earlier_code_follows_from_its_rows():
    page = (ROOT / "docs" / "efficiency.md").read_text()
    folder, order = ROOT / "docs" / "results" / "blocks", ["is_old", "process", "round"]
    rows = pd.read_csv(folder / "before_after.csv").assign(is_old=lambda x: x["code"] == "f0879845")
    rope = rows[rows["method"] == "rope"][["length", *order, "seconds"]]
    rows = rows.merge(rope, on=["length", *order], suffixes=("", "_rope"))
    rows = rows.assign(ratio=rows["seconds"] / rows["seconds_rope"], mib=rows["memory"] / 2**20)
    found = rows.groupby(["length", "method", "is_old"])[["ratio", "mib"]].median().unstack()
    head = ["", "before: time", "memory, MiB", "now: time", "memory, MiB"]
    lines = page.partition(f"| {' | '.join(head)} |\n")[2].partition("\n\n")[0].splitlines()[1:]
    shown = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert {"rope", "path", "wall", "dape"} < {*shown}
    for name, line in zip(shown, lines, strict=True):
        x = found.loc[1024, name]
        cells = [f"{x['ratio'][old]:.2f} | {x['mib'][old]:.0f}" for old in (True, False)]
        assert line == f"| {name} | {' | '.join(cells)} |"
    slower = (found.loc[256]["ratio"][False] / found.loc[256]["ratio"][True]).sort_values()
    assert slower.index[-1] == "extended" and f"at most {slower.iloc[-1]:.2f}" in page
    peaks = pd.read_csv(folder / "growth.csv").pivot(index="method", columns="length", values="mib")
    growth = peaks[4096] / peaks[2048]
    assert growth.idxmax() == "dape" and f"at most {growth.max():.2f} (DAPE, " in page
    assert f"DAPE, {peaks.loc['dape', 2048]:.0f} and {peaks.loc['dape', 4096]:.0f} MiB" in page


def test_the_documented_times_follow_from_their_rows():
    page = (ROOT / "docs" / "efficiency.md").read_text()
    ((_, found, ratios),) = documented("train_step", Load("training", "small", "sdpa", 8, 256))
    memory = [f"{x:.2f}" for x in found.memory_mib / found.memory_mib[0]]
    cells = {row[0]: row[1:] for row in zip(found.method, ratios, memory, strict=True)}
    shown = ["tape", "llama", "alibi", "fire", "t5", "fox", "path", "dape"]
    lines = zip(["time", "memory"], *(cells[x] for x in shown), strict=True)
    assert markdown_table([["/ rope", *shown], *lines]) in page
    ((_, found, ratios),) = documented("h100/train", Load("training", "base", "sdpa", 16, 1024))
    memory = [f"{x:.2f}" for x in found.memory_mib / found.memory_mib[0]]
    lines = [["time", *ratios[1:]], ["memory", *memory[1:]]]
    assert markdown_table([["/ rope", *found.method[1:]], *lines]) in page
    decoding = [*documented("decode", Load("decoding", "small", "sdpa", 1, 256))]
    lines = [[title.removeprefix("decode, decoding, sdpa, "), *x[1:]] for title, _, x in decoding]
    assert markdown_table([["time / rope", *decoding[0][1].method[1:]], *lines]) in page
    layer = documented("layer", Load("forward", "base", "sdpa", 1, 1024))
    (_, fused, ratios), (_, eager, _) = layer
    times = dict(zip(fused.method, fused.milliseconds, strict=True))
    times["tape, eager"] = dict(zip(eager.method, eager.milliseconds, strict=True))["tape"]
    for method, (name, milliseconds) in TABLE_4.items():
        paper = [name, f"{milliseconds:.3f}", f"{milliseconds / TABLE_4['rope'][1]:.2f}"]
        here = [f"{times[method]:.3g}", f"{times[method] / times['rope']:.2f}"]
        line = [*paper, *here, "eager" if "eager" in method else "sdpa"]
        assert f"| {' | '.join(line)} |\n" in page
    ratio, *ends = re.findall(r"[\d.]+", ratios[1])
    check_shown("efficiency", ratio, " to ".join(ends))


def model_of(name, work="forward"):
    load = Load(work, "tiny", "sdpa", batch=2, length=12, new=3)
    return load.ready(load.decoder(name, layers=3)), load


@pytest.mark.parametrize("work", ["forward", "training"])
@pytest.mark.parametrize("name", ["rope", "alibi", "fire", "tape"])
def test_a_layer_by_itself_is_the_layer_in_its_decoder(name, work):
    model, load = model_of(name, work)
    (call, inputs, _), found = attention_layer(model, load), []
    decoding = model.model.layers[1]
    decoding.self_attn.register_forward_hook(lambda *_: found.append(_[-1]))
    with torch.no_grad():
        model(load.tokens(model), use_cache=False)
        outputs = call(*inputs)
    attended = found[0]
    torch.testing.assert_close(outputs[0], attended.values, atol=0, rtol=0)
    if name == "tape":  # after the MLP of the layer, whose output is random here
        _, e, mlp_out = inputs
        expected = decoding.context.next_state(e, attended.payload, mlp_out)
        torch.testing.assert_close(outputs[1], expected)


def test_llamas_layer_computes_the_same():
    model, load = model_of("rope")
    for parameter in model.parameters():
        parameter.data *= 6.0  # so that attention is not flat
    layers = llama_layer(model, load), attention_layer(model, load)
    found, expected = (call(*inputs)[0] for call, inputs, _ in layers)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("compiled", [False, True])
def test_decoding_can_be_done_again(compiled):
    """The cache is as before, and so is what comes out."""
    model, load = model_of("tape", "decoding")
    cache = replace(load, compiled=compiled).cache(model.config)  # static, if compiled
    tokens = load.tokens(model)
    model(tokens, past_key_values=cache)
    first = model(tokens[:, :2], past_key_values=cache).logits
    rewind(cache.layers, 2)
    assert cache.get_seq_length() == load.length
    again = model(tokens[:, :2], past_key_values=cache).logits
    torch.testing.assert_close(again, first, atol=0, rtol=0)
