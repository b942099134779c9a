"""Arguments of the commands that look into models, and measure cost and speed."""

import argparse

from tape.analysis.shapes import ADAPTERS, LLAMA, SHAPE, SHAPES, WITHOUT
from tape.cli.evaluate import add_text
from tape.core.command import (
    SEVERAL,
    Parser,
    integer,
    model_folder,
    result_folder,
)
from tape.core.config import added_encodings, files_of
from tape.evaluation import DTYPES
from tape.positions import BACKENDS


def encoding_names() -> list[str]:
    return sorted({*files_of("position"), *added_encodings()} - {"keep"})  # that of a base model


def of_models(name: str, description: str, windows: int, least: int = 1) -> Parser:
    """Returns the parser of a command on models and a text, with the default and the least number
    of --windows."""
    parser = Parser(name, description)
    add = parser.add_argument
    add("--model", type=model_folder, nargs="+", required=True, help="folders of models")
    add_text(parser, default="local")
    add("--out", type=result_folder, default=f"output/{name}", help="a folder")
    about = "number of windows per length"
    add("--windows", type=integer(least, 10**6), default=windows, help=about)
    return parser


def stability(given: list[str]) -> argparse.Namespace:
    """Measure how attention changes when a text is shifted."""
    about = "Changes in attention and positions when a text is shifted (Table 8)."
    parser = of_models("stability", about, windows=16)
    add, types = parser.add_argument, ["float32", "bfloat16"]
    add("--length", type=integer(2), default=128, help="tokens per window")
    add("--shifts", type=integer(1, 10**6), default=[3, 10, 100, 1000], **SEVERAL)
    add("--dtypes", choices=DTYPES, default=types, **SEVERAL)
    return parser.parse_args(given)


def visualize(given: list[str]) -> argparse.Namespace:
    """Draw attention and positional states."""
    parser = of_models("visualize", "Figures of attention and positions (Fig. 7).", windows=8)
    add = parser.add_argument
    add("--length", type=integer(8), default=256, help="tokens per window")
    add("--heads", type=integer(1), default=4, help="heads to show per layer")
    return parser.parse_args(given)


def state(given: list[str]) -> argparse.Namespace:
    """Measure how TAPE's state differs from RoPE's."""
    about = "How TAPE's learned state differs from RoPE's, and what it is for."
    parser = of_models("state", about, windows=64, least=2)  # one has the state of another
    about = "lengths of windows (default: 1, 2 and 4 times the trained length)"
    parser.add_argument("--lengths", type=integer(4), help=about, **SEVERAL)
    return parser.parse_args(given)


def gallery(given: list[str]) -> argparse.Namespace:
    """Draw what every encoding adds to scores."""
    parser = Parser("gallery", "Pictures of what every encoding adds to scores before training.")
    known = {"choices": encoding_names(), "metavar": "NAME"}
    add = parser.add_argument
    add("--encodings", nargs="+", help="names; default: all", **known)
    add("--length", type=integer(8, 4096), default=128, help="tokens (default: 128)")
    add("--out", type=result_folder, default="output/gallery", help="a folder")
    return parser.parse_args(given)


def cost(given: list[str]) -> argparse.Namespace:
    """Count FLOPs, parameters and memory of every encoding."""
    parser = Parser("cost", "Cost of every encoding: arithmetic, parameters and memory.")
    for name, default in SHAPE.items():
        about = f"default: {default or 'as many as heads'}"
        parser.add_argument(f"--{name}", type=integer(1, 10**7), default=default, help=about)
    parser.add_argument("--out", type=result_folder, default="output/cost", help="a folder")
    return parser.parse_args(given)


def speed(given: list[str]) -> argparse.Namespace:
    """Time layers, training steps, decoding and adapters."""
    """Parses a command line. What is not given and depends on the device is left out."""
    about = "Times encodings, attention backends and adapters: layers, training steps, decoding."
    parser = Parser("speed", about, argument_default=argparse.SUPPRESS)
    names = {*encoding_names(), f"tape{WITHOUT}", LLAMA, *ADAPTERS}
    cases, types = ["layer", "train_step", "decode"], ["float32", "bfloat16", "float16"]
    add, number = parser.add_argument, integer(1, 10**7)
    about = f"what is timed (default: {' '.join(cases)})"
    add("--case", choices=[*cases, "adapters"], default=cases, help=about, **SEVERAL)
    add("--methods", choices=names, default=None, help="default: those of the case", **SEVERAL)
    works = ["forward", "training", "prefill", "decoding"]
    add("--work", choices=works, default=None, help="default: all of the cases", **SEVERAL)
    add("--shape", choices=SHAPES, help="shape of the decoder (default: base; on a CPU small)")
    about = "attention backends (default: all; on a CPU not flash_attention_2)"
    add("--backends", choices=BACKENDS, help=about, **SEVERAL)
    about = "with torch.compile or without (default: both; on a CPU no)"
    add("--compiled", choices=["no", "yes"], help=about, **SEVERAL)
    add("--lengths", type=number, default=None, help="tokens (default: the shape's)", **SEVERAL)
    add("--batch", type=number, default=None, help="sequences (default: by case and shape)")
    add("--new", type=number, help="tokens to decode (default: 64; on a CPU 16)")
    add("--dtype", choices=types, help="see Load (default: bfloat16, on a CPU float32)")
    switch = {"action": "store_true", "default": False}
    add("--checkpointing", help="recompute activations in training steps of decoders", **switch)
    add("--alone", help="load one method at a time, for large models", **switch)
    add(
        "--rounds",
        type=integer(1, 10**6),
        default=15,
        help="rounds in which all methods take turns (default: 15)",
    )
    about = "calls before memory is counted, and rounds before the timed ones (default: 1)"
    add("--warm_up", type=integer(0, 10**6), default=1, help=about)
    add(
        "--out",
        type=result_folder,
        default="output/speed",
        help="folder of results; the same command resumes there",
    )
    arguments = parser.parse_args(given)
    if "adapters" in arguments.case:
        from omegaconf import OmegaConf

        from tape.cli.settings.composition import composed  # takes half a second

        peft = {name: composed([f"peft={name}"], "train").peft for name in ADAPTERS}
        arguments.adapters = {name: OmegaConf.to_container(x) for name, x in peft.items()}
    return arguments
