"""How fast every encoding is in every attention backend: an attention layer, and a whole decoder.

python benchmarks/speed.py                              # all that runs here, in minutes
python benchmarks/speed.py --scopes layer --lengths 1024 --hidden 768 --heads 12    # Table 4

All methods take turns in one process. Each comparison is saved before the next begins: the same
command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import peers, speed_report, throughput, workloads
from benchmarks.harness import Comparison, heading, parser, publish, run
from benchmarks.models import BASE, DEVICE, SMALL, decoder, library_llama
from benchmarks.timing import Work, matrix_product
from benchmarks.workloads import WORK, Load
from tape import TapeConfig
from tape.analysis.cost import HELP, configuration
from tape.attention import KERNELS
from tape.command import Distinct, expected_errors, integer
from tape.positions import ENCODINGS

SCOPES = ("layer", "model")
HERE = "here"  # this package
PRODUCT = "product of large matrices"
GPU = DEVICE.type == "cuda"
SHAPE = BASE if GPU else SMALL
LENGTHS = [512 * 2**n for n in range(7)] if GPU else [64, 256]
BACKENDS = [name for name in KERNELS if GPU or name != "flash_attention_2"]


class Method(NamedTuple):
    """An implementation of an encoding; of TAPE's layer also without its update of the state."""

    encoding: str
    implementation: str = HERE
    update: bool = True

    @property
    def label(self) -> str:
        return self.encoding if self.update else f"{self.encoding} without its update"

    def __str__(self) -> str:
        here = self.implementation == HERE
        return self.label if here else f"{self.label}, {self.implementation}"


def methods(scope: str, encodings: list[str], compared: list[str]) -> Iterator[Method]:
    """Yields the methods of a comparison, this package's first."""
    for name in encodings:
        yield Method(name)
        if scope == "layer" and name == "tape":
            yield Method(name, update=False)
    for peer in compared:
        if scope == "layer" or peer == "transformers":
            yield from (Method(name, peer) for name in peers.PEERS[peer] if name in encodings)


@dataclass(frozen=True)
class Case:
    """What all methods of a comparison do."""

    scope: str
    backend: str
    load: Load
    shape: dict[str, int | None]

    def __str__(self) -> str:
        compiled = ", compiled" if self.load.compiled else ""
        return f"{self.scope}, {self.load.work}, {self.backend}{compiled}, {self.load.length:,}"

    def config(self, encoding: str) -> TapeConfig:
        """Returns a decoder's configuration, for as many tokens as there will be."""
        tokens = {"length": self.load.length + self.load.new}
        layers = {"layers": 3} if self.scope == "layer" else {}
        return configuration(self.shape | tokens | layers, {"name": encoding})

    def prepare(self, method: Method) -> Work:
        """Returns the work of a method.

        Raises:
            ValueError, NotImplementedError, ImportError, MemoryError: if it cannot run here.
        """
        load, peer = self.load, method.implementation
        peers.check(peer, self.backend)
        model = load.ready(decoder(self.config(method.encoding), self.backend))
        if peer == "transformers":
            model = load.ready(library_llama(model))
        if self.scope == "model":
            return workloads.of_model(model, load)
        if peer == HERE:
            layer = workloads.attention_layer(model, load, method.update)
        elif peer == "transformers":
            layer = peers.llama_layer(model, load)
        else:
            layer = peers.building_block(peer, model, load)
        return workloads.of_layer(layer, load, model.config)

    def multiply_adds(self, method: Method, causal: bool) -> int:
        config, logits = self.config(method.encoding), 0
        if self.scope == "layer":
            operations = throughput.of_layer(config, method.update)
        else:
            operations = throughput.of_model(config)
            logits = config.hidden_size * config.vocab_size
        return throughput.multiply_adds(operations, self.load, logits, causal)


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Returns all comparisons, the short ones first."""
    dtype, shape = (
        getattr(torch, arguments.dtype),
        {name: getattr(arguments, name) for name in SHAPE},
    )
    found = []
    for length, scope, compiled, backend, work in product(
        sorted(arguments.lengths),
        *(arguments.scopes, arguments.compiled, arguments.backends, arguments.work),
    ):
        new = arguments.new if scope == "model" else 1
        load = Load(work, arguments.batch, length, new, dtype, compiled == "yes")
        found.append(Case(scope, backend, load, shape))
    return found


def parse(given: list[str] | None = None) -> argparse.Namespace:
    counts = {"batch": (1, 1, "sequences"), "new": (64 if GPU else 4, 1, "tokens to decode")}
    found = parser(__doc__, rounds=(15 if GPU else 7, 7), out=Path("output/speed"), **counts)
    both = ["no", "yes"]
    for name, choices, default, about in (
        ("scopes", SCOPES, SCOPES, "an attention layer, a whole decoder"),
        ("work", WORK, WORK, "what is timed"),
        ("encodings", ENCODINGS, ENCODINGS, "rope among them"),
        ("backends", KERNELS, BACKENDS, "attention backends"),
        ("compiled", both, both if GPU else ["no"], "without and with torch.compile"),
        ("peers", peers.PEERS, peers.PEERS, "other implementations"),
    ):
        many = {"nargs": "*" if name == "peers" else "+", "choices": list(choices)}
        found.add_argument(f"--{name}", default=list(default), action=Distinct, help=about, **many)
    add = found.add_argument
    number = integer(1, 10**7)
    add("--lengths", type=number, nargs="+", default=LENGTHS, action=Distinct, help="tokens")
    dtypes, dtype = ["float32", "bfloat16", "float16"], "bfloat16" if GPU else "float32"
    add("--dtype", choices=dtypes, default=dtype, help="of the weights; in training of autocast")
    for name, default in SHAPE.items():
        add(f"--{name}", type=int, default=default, help=HELP.get(name, "of the decoder"))
    add("--seconds", type=float, help="begin no comparison after so many")
    arguments = found.parse_args(given)
    if arguments.seconds is not None and not arguments.seconds > 0:
        found.error(f"--seconds {arguments.seconds} must be above 0")
    if "rope" not in arguments.encodings:
        asked = " ".join(arguments.encodings)
        found.error(f"--encodings {asked}: times are given next to those of rope; add it")
    return arguments


@expected_errors(continues=True)
def main(given: list[str] | None = None) -> None:
    arguments = parse(given)
    asked = {str(case): case for case in cases(arguments)}
    for case, name in product(asked.values(), arguments.encodings):
        case.config(name)  # refuses an invalid shape
    times, flops = matrix_product(getattr(torch, arguments.dtype))
    comparisons = [Comparison(PRODUCT, {PRODUCT: lambda: times})]
    taking_part = {}
    for name, case in asked.items():
        all_ = methods(case.scope, arguments.encodings, arguments.peers)
        taking_part[name] = {str(method): method for method in all_}
        prepare = {key: partial(case.prepare, method) for key, method in taking_part[name].items()}
        comparisons.append(Comparison(name, prepare, optional=True))
    version = {"x-transformers": peers.version("x-transformers")}
    found = run("speed", arguments, comparisons, **version)
    peak = flops / min(found[PRODUCT][PRODUCT].seconds)
    rows = speed_report.results(found, asked, taking_part, peak)
    text = speed_report.write(rows, arguments, heading(arguments))
    publish("speed", arguments, text, left=len(comparisons) - len(found))


if __name__ == "__main__":
    main()
