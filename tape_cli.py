"""The console command `tape`: every command of the project by a short name.

It lies outside the package `tape`, whose import takes seconds.
"""

import difflib
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parent

# Task -> command -> (a file of the project or a module, what it does).
COMMANDS = {
    "train": {
        "train": ("train.py", "pre-train, fine-tune or extend a model; Hydra settings"),
        "sweep": ("sweep.py", "train, evaluate and compare runs over settings and seeds"),
    },
    "evaluate": {
        "perplexity": ("tape.evaluation.perplexity", "perplexity of a text by length"),
        "long-perplexity": (
            "tape.evaluation.long_perplexity",
            "perplexity of the tokens that need a long context (LongPPL)",
        ),
        "passkey": ("eval_retrieval.py", "accuracy of passkey retrieval by length and depth"),
        "lm-eval": ("tape.evaluation.lm_eval", "tasks of lm-eval: MMLU, ARC, RULER, your own"),
        "addition": ("arithmetic.evaluate", "accuracy of arithmetic by operand lengths"),
        "addition-merge": ("arithmetic.merge", "join the shards of an arithmetic evaluation"),
        "synthetic": ("synthetic.evaluate", "accuracy on a synthetic task by length"),
        "scrolls-generate": ("scrolls.generate", "generate the answers to a SCROLLS task"),
        "scrolls-score": ("eval_scrolls.py", "verify and score predictions for SCROLLS"),
        "scrolls-majority": ("scrolls.majority", "the majority baseline of a SCROLLS task"),
    },
    "compare": {
        "compare": ("tape.compare", "runs over seeds: table, statistics, figures"),
        "suite": ("synthetic.suite", "all encodings on all synthetic tasks: table, heat maps"),
        "rates": ("tape.compare.rates", "choose each encoding's learning rate by validation loss"),
        "scaling": ("tape.compare.scaling", "loss against compute, and the compute that is saved"),
        "heatmap": ("tape.compare.heatmap", "draw accuracy grids of runs side by side"),
        "report": ("tape.report", "write all results on one HTML page, next to the paper's"),
        "scrolls-show": ("scrolls.show", "write the SCROLLS answers of all encodings on a page"),
    },
    "analyse": {
        "stability": ("tape.analysis.stability", "change of attention when a text is moved"),
        "visualize": ("tape.analysis.visualize", "draw attention and positional states"),
        "state": ("tape.analysis.state", "how TAPE's learned state differs from RoPE's"),
        "optimum": ("tape.analysis.optimum", "lowest losses on bigrams in context"),
        "faults": ("tape.analysis.faults", "effect of two faults of the original code"),
        "gallery": ("tape.analysis.gallery", "pictures of what every encoding adds to scores"),
        "sharing": ("tape.analysis.sharing", "memory and traffic of GPUs that share a text"),
        "cost": ("tape.analysis.cost", "FLOPs, parameters and memory of every encoding"),
    },
    "export": {
        "export": ("tape.export", "save a model with its code, or as a plain Llama"),
    },
    "benchmark": {
        "speed": ("benchmarks/speed.py", "time encodings and attention backends"),
        "optimisations": ("benchmarks/optimisations.py", "time each optimisation of TAPE"),
        "bench-train": ("benchmarks/train_step.py", "training steps of encodings"),
        "bench-adapters": ("benchmarks/adapters.py", "training steps of adapters"),
        "bench-decode": ("benchmarks/decode.py", "greedy decoding with a KV cache"),
        "bench-layer": ("benchmarks/layer.py", "the parts of a decoder layer"),
        "bench-llama": ("benchmarks/llama_step.py", "training and decoding at Llama-2-7B's shape"),
        "bench-perplexity": ("benchmarks/perplexity.py", "scoring a text"),
        "bench-addition": ("benchmarks/arithmetic_eval.py", "an arithmetic evaluation"),
        "bench-generate": ("benchmarks/scrolls_generate.py", "answers in batches or one by one"),
        "bench-tokenize": ("benchmarks/scrolls_tokenize.py", "tokenizing and packing documents"),
        "bench-stream": ("benchmarks/stream.py", "tokens per second of a streamed corpus"),
        "flex-blocks": (
            "benchmarks/flex_blocks.py",
            "compile FlexAttention for an H100 without one",
        ),
        "utilization": ("benchmarks/utilization.py", "model FLOPs utilization of finished runs"),
    },
}
TARGETS = {name: target for group in COMMANDS.values() for name, (target, _) in group.items()}


def usage() -> str:
    """Returns the help: a line per command, grouped by task."""
    lines = ["usage: tape COMMAND [arguments]; tape COMMAND --help shows the arguments"]
    for task, commands in COMMANDS.items():
        lines += ["", f"{task}:"]
        lines += [f"  {name:<17} {about} ({target})" for name, (target, about) in commands.items()]
    return "\n".join(lines)


def main() -> None:
    """Runs a command. If the reader of its output has ended, as `head` does, so does the command,
    without an error message."""
    try:
        try:
            run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushed again at the end
        sys.exit(1)


def run() -> None:
    """Runs a command in this process, like `python FILE` or `python -m MODULE`."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in TARGETS:
        close = difflib.get_close_matches(name, TARGETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "tape --help lists the commands"
        sys.exit(f"error: unknown command {name!r}; {hint}")
    target = TARGETS[name]
    # The checkout that one is in, if it is not that of the installation.
    root = next(place for place in (Path.cwd(), ROOT) if (place / Path(__file__).name).is_file())
    file = root / target
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.parent if target.endswith(".py") else Path.cwd()))
    sys.path.append(str(root))  # `config` is not an installed package
    if target.endswith(".py"):
        runpy.run_path(str(file), run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
