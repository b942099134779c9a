"""Arguments of `tape speed` (as tape/parsers.py), and the methods that it compares."""

import argparse

from tape.core.command import Parser, integer, result_folder
from tape.parsers import SEVERAL, names_in

WITHOUT = " without its update"  # a layer of TAPE whose state stays as it is
ENCODINGS = names_in("tape/encodings/__init__.py", "ENCODINGS")
METHODS = {  # by case; llama is transformers' with the weights and outputs of rope (tested)
    "layer": [*ENCODINGS, f"tape{WITHOUT}", "llama"],
    "train_step": [*ENCODINGS, "llama"],
    "decode": [*ENCODINGS, "llama"],
    "adapters": ["lora", "longlora", "adape", "adape_lora", "ft"],  # of config/peft
}
USUAL = METHODS | {case: ["rope", "tape", "llama"] for case in ("train_step", "decode")}


def speed(given: list[str]) -> argparse.Namespace:
    """Parses a command line. What is not given and depends on the device is left out."""
    about = "Times encodings, attention backends and adapters: layers, training steps, decoding."
    parser = Parser("speed", about, argument_default=argparse.SUPPRESS)
    names = dict.fromkeys(name for methods in METHODS.values() for name in methods)
    kernels = names_in("tape/attention/backends.py", "KERNELS")
    shapes = names_in("benchmarks/workloads.py", "SHAPES")
    cases, types = ["layer", "train_step", "decode"], ["float32", "bfloat16", "float16"]
    add, number = parser.add_argument, integer(1, 10**7)
    about = f"what is timed (default: {' '.join(cases)})"
    add("--case", choices=METHODS, default=cases, help=about, **SEVERAL)
    add("--methods", choices=names, default=None, help="default: those of the case", **SEVERAL)
    works = ["forward", "training", "prefill", "decoding"]
    add("--work", choices=works, default=None, help="default: all of the cases", **SEVERAL)
    add("--shape", choices=shapes, help="of the decoder (default: base, on a CPU small)")
    about = "of attention (default: all, on a CPU without flash_attention_2)"
    add("--backends", choices=kernels, help=about, **SEVERAL)
    about = "torch.compile (default: no yes, on a CPU no)"
    add("--compiled", choices=["no", "yes"], help=about, **SEVERAL)
    add("--lengths", type=number, default=None, help="tokens (default: the shape's)", **SEVERAL)
    add("--batch", type=number, default=None, help="sequences (default: by case and shape)")
    add("--new", type=number, help="tokens that decoders decode (default: 64, on a CPU 16)")
    add("--dtype", choices=types, help="see Load (default: bfloat16, on a CPU float32)")
    switch = {"action": "store_true", "default": False}
    add("--checkpointing", help="of activations, in decoders that train", **switch)
    add("--alone", help="each method alone: for models that are large", **switch)
    add("--rounds", type=integer(1, 10**6), default=15, help="of all methods (default: 15)")
    add("--out", type=result_folder, default="output/speed", help="folder, in which it resumes")
    arguments = parser.parse_args(given)
    known = {name for case in arguments.case for name in METHODS[case]}
    if unknown := [name for name in arguments.methods or () if name not in known]:
        parser.error(f"--methods {' '.join(unknown)}: --case {' '.join(arguments.case)} has none")
    return arguments
