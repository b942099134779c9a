"""How fast every encoding is in every attention backend: an attention layer, and a whole decoder.

python benchmarks/speed.py                              # all that runs here, in minutes
python benchmarks/speed.py --scopes layer --lengths 1024 --hidden 768 --heads 12    # Table 4

All methods take turns in one process. Each comparison is saved before the next begins: the same
command resumes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from benchmarks import peers, speed_report, workloads
from benchmarks.harness import Comparison, parser, publish, run
from benchmarks.models import BASE, DEVICE, SMALL, decoder, library_llama
from benchmarks.timing import Work, matrix_product, reference_rate
from benchmarks.workloads import WORK, Load
from tape import TapeConfig
from tape.analysis.cost import HELP, configuration
from tape.attention.backends import KERNELS
from tape.command import Distinct, expected_errors, integer
from tape.model import flops as formulas
from tape.positions import ENCODINGS

SCOPES = ("layer", "model")
HERE = "here"  # this package
PRODUCT = "product of large matrices"
AVERAGE = "average of E"  # stays in a layer of TAPE without its update
SHARED = "MLP of distances"  # of FIRE, once for all sequences of a batch
PER_PAIR = ("scores and average of the values", AVERAGE, SHARED)  # of tokens
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


@dataclass(frozen=True)
class Case:
    """A comparison.

    Attributes:
        encodings: those of this package.
        peers: other implementations.
    """

    scope: str
    backend: str
    load: Load
    shape: dict[str, int | None]
    encodings: Sequence[str] = ()
    peers: Sequence[str] = ()

    def __str__(self) -> str:
        compiled = ", compiled" if self.load.compiled else ""
        return f"{self.scope}, {self.load.work}, {self.backend}{compiled}, {self.load.length:,}"

    @property
    def methods(self) -> dict[str, Method]:
        """Returns the methods by name, this package's first."""
        found = []
        for name in self.encodings:
            found.append(Method(name))
            if self.scope == "layer" and name == "tape":
                found.append(Method(name, update=False))
        for peer in self.peers:
            if self.scope == "layer" or peer == "transformers":
                found += [
                    Method(name, peer) for name in peers.PEERS[peer] if name in self.encodings
                ]
        return {str(method): method for method in found}

    def config(self, encoding: str) -> TapeConfig:
        """Returns a decoder's configuration, for as many tokens as there will be."""
        tokens = {"length": self.load.length + self.load.new}
        layers = {"layers": 3} if self.scope == "layer" else {}
        return configuration(self.shape | tokens | layers, {"name": encoding})

    def prepare(self, name: str) -> Work:
        """Returns the work of a method.

        Raises:
            ValueError, NotImplementedError, ImportError, MemoryError: if it cannot run here.
        """
        load, method = self.load, self.methods[name]
        peer = method.implementation
        peers.check(peer, load.work, self.backend)
        model = load.ready(decoder(self.config(method.encoding), self.backend))
        if self.scope == "layer":
            if peer == HERE:
                layer = workloads.attention_layer(model, load, method.update)
            else:
                layer = peers.attention_layer(peer, model, load)
            return workloads.of_layer(layer, load, model.config)
        return workloads.of_model(model if peer == HERE else load.ready(library_llama(model)), load)

    def multiply_adds(self, method: Method, causal: bool) -> int:
        """Returns the multiply-adds of a call, by the formulas behind the paper's Table 3. A
        backward pass takes twice those of the forward pass.

        Args:
            causal: count only the N (N + 1) / 2 pairs of tokens under a causal mask; the paper
                counts N^2.
        """
        config, load, N = self.config(method.encoding), self.load, self.load.length
        parts = formulas.multiply_adds(config, N)
        if self.scope == "layer":  # one of three; two of them update TAPE's state
            updates = formulas.of_encoding(config, N).keys() - {SHARED}
            left_out = {"MLP", "logits"} | (set() if method.update else updates - {AVERAGE})
            parts = {
                part: n // (2 if part in updates else 3)
                for part, n in parts.items()
                if part not in left_out
            }
        tokens, pairs = N, N * (N + 1) // 2 if causal else N**2
        if load.work == "decoding":
            tokens, pairs = load.new, sum(range(N + 1, N + load.new + 1))
        total = 0
        for part, n in parts.items():
            times = 1 if part == "logits" and load.work == "prefill" else tokens
            count = n // N**2 * pairs if part in PER_PAIR else n // N * times
            total += count * (1 if part == SHARED else load.batch)
        return total * (3 if load.work == "training" else 1)


def cases(arguments: argparse.Namespace) -> list[Case]:
    """Returns all comparisons, the short ones first."""
    dtype = getattr(torch, arguments.dtype)
    shape = {name: getattr(arguments, name) for name in SHAPE}
    asked = (arguments.scopes, arguments.compiled, arguments.backends, arguments.work)
    found = []
    for length, scope, compiled, backend, work in product(sorted(arguments.lengths), *asked):
        new = arguments.new if scope == "model" else 1
        load = Load(work, arguments.batch, length, new, dtype, compiled == "yes")
        found.append(Case(scope, backend, load, shape, arguments.encodings, arguments.peers))
    return found


def parse(given: list[str] | None = None) -> argparse.Namespace:
    counts = {"batch": (1, 1, "sequences"), "new": (64 if GPU else 4, 1, "tokens to decode")}
    found = parser(__doc__, rounds=(15 if GPU else 7, 7), out="output/speed", **counts)
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
    asked = cases(arguments)
    for case, name in product(asked, arguments.encodings):
        case.config(name)  # refuses an invalid shape
    dtype = getattr(torch, arguments.dtype)
    times, flops = matrix_product(dtype)
    comparisons = [Comparison(PRODUCT, [PRODUCT], lambda _: times)]
    comparisons += [Comparison(str(c), [*c.methods], c.prepare, optional=True) for c in asked]
    version = {"x-transformers": peers.version("x-transformers")}
    found = run("speed", arguments, comparisons, **version)
    reference = reference_rate(dtype, flops / found[PRODUCT]["seconds"].min())
    rows = speed_report.results(found, asked, *reference)
    text = speed_report.write(rows, arguments)
    publish("speed", arguments, text, left=len(comparisons) - len(found))


if __name__ == "__main__":
    main()
