"""One piece of work by all methods in turn: who can do it, how long it takes them, and in what."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from tape import TapeConfig
from tape.analysis import peers, throughput, workloads
from tape.analysis.cost import configuration
from tape.analysis.decoders import decoder, library_llama
from tape.analysis.measuring import DEVICE, in_turn, observed
from tape.analysis.workloads import Load

SCOPES = ("layer", "model")
THIS_PACKAGE = "here"  # this package
LEAST = 0.02 if DEVICE.type == "cuda" else 0.002  # seconds of a measurement
TOO_LARGE = "does not fit into memory"
BESIDE = " beside the methods before it: try it with rope alone"
RAN_OUT = "memory ran out while all took turns: try fewer of them"
Work = Callable[[], None]
Row = dict[str, Any]


class Method(NamedTuple):
    """Who implements which encoding; of TAPE's layer also without its update of the state."""

    encoding: str
    implementation: str = THIS_PACKAGE
    update: bool = True

    @property
    def about(self) -> str:
        return self.encoding if self.update else f"{self.encoding} without its update"

    def __str__(self) -> str:
        return (
            self.about
            if self.implementation == THIS_PACKAGE
            else f"{self.about}, {self.implementation}"
        )


ROPE = Method("rope")


def methods(scope: str, encodings: list[str], compared: list[str]) -> Iterator[Method]:
    """Those that take part, this package's first."""
    for name in encodings:
        yield Method(name)
        if scope == "layer" and name == "tape":
            yield Method(name, update=False)
    for peer in compared:
        if scope == "layer" or peer == "transformers":
            yield from (Method(name, peer) for name in peers.PEERS[peer] if name in encodings)


@dataclass(frozen=True)
class Comparison:
    """What all methods do."""

    scope: str
    backend: str
    load: Load

    def __str__(self) -> str:
        compiled = ", compiled" if self.load.compiled else ""
        return f"{self.scope}, {self.load.work}, {self.backend}{compiled}, {self.load.length:,}"

    def config(self, shape: dict[str, int | None], encoding: str) -> TapeConfig:
        """Of a decoder that is trained on sequences of as many tokens as there will be."""
        tokens = {"length": self.load.length + self.load.new}
        layers = {"layers": 3} if self.scope == "layer" else {}
        return configuration(shape | tokens | layers, {"name": encoding})

    def work(self, method: Method, shape: dict[str, int | None]) -> Work:
        """What a method is to do.

        Raises:
            one of what `inability` explains, for what cannot be done here.
        """
        load = self.load
        peers.check(method.implementation, self.backend)
        model = load.ready(decoder(self.config(shape, method.encoding), self.backend))
        if method.implementation == "transformers":
            model = load.ready(library_llama(model))
        if self.scope == "model":
            return workloads.of_model(model, load)
        if method.implementation == THIS_PACKAGE:
            layer = workloads.attention_layer(model, load, method.update)
        elif method.implementation == "transformers":
            layer = peers.llama_layer(model, load)
        else:
            layer = peers.building_block(method.implementation, model, load)
        return workloads.of_layer(layer, load, model.config)

    def multiply_adds(self, method: Method, shape: dict[str, int | None], causal: bool) -> int:
        config = self.config(shape, method.encoding)
        if self.scope == "layer":
            operations, logits = throughput.of_layer(config, method.update), 0
        else:
            operations, logits = throughput.of_model(config), config.hidden_size * config.vocab_size
        return throughput.multiply_adds(operations, self.load, logits, causal)


def inability(error: Exception) -> str | None:
    """Why a method cannot do a piece of work here; None for what nobody expects."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in text:
        return TOO_LARGE
    if isinstance(error, TorchDynamoException | InductorError):
        return f"does not compile: {text}"
    if isinstance(error, ValueError | NotImplementedError | ImportError):
        return text
    return None


def measure(
    comparison: Comparison,
    taking_part: list[Method],
    shape: dict[str, int | None],
    rounds: int,
    say: Callable[[str], None],
) -> list[Row]:
    """A row per method: its seconds in each round, or why there are none.

    Args:
        say: is told what is going on.
    """
    rows: dict[Method, Row] = {}
    able: dict[str, Work] = {}
    for method in taking_part:
        say(str(method))
        row = rows[method] = {**method._asdict(), "seconds": [], "note": ""}
        try:
            work = comparison.work(method, shape)
            row["memory"], row["kernels"] = observed(work)
            able[str(method)] = work
        except Exception as error:
            if (reason := inability(error)) is None:
                raise
            row["note"] = reason + BESIDE if reason == TOO_LARGE and able else reason
            if reason == TOO_LARGE:
                gc.collect()  # what it had begun with is in the way of the others
    say("in turn")
    if able:
        try:
            seconds, note = in_turn(able, rounds, warm_up=1, least=LEAST).rounds, ""
        except Exception as error:
            if inability(error) != TOO_LARGE:
                raise
            seconds, note = {}, RAN_OUT
        for method, row in rows.items():
            row["seconds"] = seconds.get(str(method), [])
            row["note"] = row["note"] or note
    able.clear()
    gc.collect()
    torch._dynamo.reset()  # graphs of another length are not kept
    return list(rows.values())
