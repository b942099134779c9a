"""Compiles FlexAttention's kernels for sm_90 (H100, H200) on a machine without a GPU.

    EXTRAS=dev,kernels bash script/setup.sh                               # installs triton
    python benchmarks/flex_blocks.py

torch's own templates are filled in with a causal mask and the block sizes of
`tape.attention.flex`, or those that Inductor chooses by the width of the queries, and compiled down
to machine code: shared memory, registers and spilled bytes of each kernel.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import jinja2
import pandas as pd
import torch
from tqdm import tqdm

from tape.attention.flex import kernel_options
from tape.command import Parser, expected_errors, result_folder
from tape.evaluation.tables import markdown_table
from tape.files import write_text

LIMIT = 232_448  # bytes of shared memory of a block on sm_90
TEMPLATES = Path(torch.__file__).parent / "_inductor" / "kernel" / "flex" / "templates"
FILES = {
    "fwd": ("flex_attention", "common", "utilities"),
    "bwd": ("flex_backwards", "utilities"),
}
OF_INDUCTOR = {
    "fwd": {"block_m": "BLOCK_M", "block_n": "BLOCK_N"},
    "bwd": {
        "block_m1": "BLOCK_M1",
        "block_n1": "BLOCK_N1",
        "block_m2": "BLOCK_M2",
        "block_n2": "BLOCK_N2",
    },
}
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
PARTS = ("num_stages", "num_warps")
BATCH, HEADS, LENGTH, BLOCK = 2, 4, 1024, 128
COLUMNS = ["kernel", "dtype", "queries", "values", "blocks of", "blocks", "stages", "warps"]
COLUMNS += ["shared memory", "registers", "spilled"]


class Compiled(NamedTuple):
    """A kernel: bytes of shared memory, registers of a thread, bytes that a thread spills."""

    shared: int
    registers: int
    spilled: int


def of_inductor(kernel: str, width: int, dtype: torch.dtype) -> dict[str, int]:
    """The block sizes that Inductor would choose on sm_90 for queries of this width."""
    from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic

    with patch("torch.cuda.get_device_capability", return_value=(9, 0)):
        choose = getattr(CUDAConfigHeuristic(), f"get_flex_attn_{kernel}_configs")
        (config,) = choose(width, dtype)
    names = OF_INDUCTOR[kernel] | {part: part for part in PARTS}
    return {ours: getattr(config, theirs) for theirs, ours in names.items()}


def of_tape(kernel: str, queries: int, values: int, limit: int = LIMIT) -> dict[str, int]:
    """The block sizes of `tape.attention.flex` for these widths; {}: Inductor's."""
    options, prefix = kernel_options(queries, values, limit), f"{kernel}_"
    return {name[4:]: size for name, size in options.items() if name.startswith(prefix)}


def _constants(
    kernel: str, queries: int, values: int, dtype: torch.dtype, blocks: dict[str, int]
) -> dict[str, Any]:
    """What Inductor defines at the head of the kernel."""
    defined = {name: size for name, size in blocks.items() if name not in PARTS}
    defined |= {"SPARSE_Q_BLOCK_SIZE": BLOCK, "SPARSE_KV_BLOCK_SIZE": BLOCK}
    for name, width in (("QK", queries), ("V", values)):
        defined[f"{name}_HEAD_DIM"] = width
        defined[f"{name}_HEAD_DIM_ROUNDED"] = 1 << (width - 1).bit_length()
    defined["SAFE_HEAD_DIM"] = all(x & (x - 1) == 0 for x in (queries, values))
    defined |= dict.fromkeys(("IS_DIVISIBLE", "HAS_FULL_BLOCKS", "WRITE_DQ"), True)
    defined |= dict.fromkeys(("PRESCALE_QK", "ROWS_GUARANTEED_SAFE"), False)
    defined |= {"BLOCKS_ARE_CONTIGUOUS": False, "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": False}
    defined |= {"FLOAT32_PRECISION": "ieee", "SM_SCALE": queries**-0.5, "GQA_SHARED_HEADS": 1}
    return defined | {"USE_TMA": False}


def source(
    kernel: str, queries: int, values: int, dtype: torch.dtype, blocks: dict[str, int]
) -> tuple[str, list[str]]:
    """Returns the template as a Triton kernel, and the names of its arguments."""
    text = "\n".join((TEMPLATES / f"{name}.py.jinja").read_text() for name in FILES[kernel])
    constants = _constants(kernel, queries, values, dtype, blocks)
    width = values if kernel == "fwd" else queries
    count, names = LENGTH // BLOCK, []
    definitions = [f"{name} : tl.constexpr = {value!r}" for name, value in constants.items()]
    definitions.append("INDEX_DTYPE : tl.constexpr = tl.int32")

    def shape(name: str) -> tuple[int, ...]:
        if name.endswith("_BLKS"):
            return (1, 1, count)
        if name.endswith("_IDX"):
            return (1, 1, count, count)
        return (BATCH, HEADS, LENGTH, values if name in ("V", "DO", "DV") else queries)

    def stride(name: str, axis: int | None = None) -> Any:
        if name.endswith(("_BLKS", "_IDX")):
            found = (count * count, count * count, count, 1)[-len(shape(name)) :]
        else:  # as the projections lay them out: (B, T, H, D)
            _, H, T, D = shape(name)
            found = (H * T * D, D, H * D, 1)
        return found if axis is None else found[axis]

    def def_kernel(*given: str) -> str:
        names.extend(given)
        lines = [*definitions, *(f"{name} = arg_{name}" for name in given)]
        arguments = ", ".join(f"arg_{name}" for name in (*given, "out"))
        body = "".join(f"    {line}\n" for line in lines)
        return f"@triton.jit\ndef kernel({arguments}):\n{body}"

    def modification(subgraph_number: int, output_name: str | None, **given: str) -> str:
        if output_name is None:  # the gradients of captured tensors
            return "pass"
        if output_name == "mask_mod_output":
            return f"{output_name} = ({given['m']}) >= ({given['n']})"
        taken = "score" if output_name == "post_mod_scores" else "grad_score_mod"
        return f"{output_name} = {given[taken]}"

    def store_output(indices: tuple[str, ...], value: str, mask: str, **given: Any) -> str:
        b, h, t, d = indices
        place = f"{b}*{HEADS * LENGTH * width} + {h}*{width} + {t}*{HEADS * width} + {d}"
        return f"tl.store(arg_out + ({place}), {value}.to(tl.{_triton_name(dtype)}), {mask})"

    environment = jinja2.Environment()
    environment.filters["indent_except_first"] = lambda text, n: text.replace(
        "\n", "\n" + "    " * n
    )
    filled = environment.from_string(text).render(
        def_kernel=def_kernel,
        size=lambda name, axis: shape(name)[axis],
        stride=stride,
        gen_argdefs=lambda: ", ".join(f"arg_{name}" for name in (*names, "out")),
        gen_defines=lambda: "\n".join(definitions),
        modification=modification,
        store_output=store_output,
        **constants,
    )
    return f"import triton\nimport triton.language as tl\n{filled}", names


def _triton_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compiled(
    kernel: str, queries: int, values: int, dtype: torch.dtype, blocks: dict[str, int]
) -> Compiled:
    """Compiles a kernel ("fwd" or "bwd") for these widths.

    Raises:
        ImportError: without triton.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    text, names = source(kernel, queries, values, dtype, blocks)
    pointers = {"LSE": "*fp32", "MAX": "*fp32", "DELTA": "*fp32"}
    types = {
        f"arg_{name}": "*i32" if name.endswith(("_BLKS", "_IDX")) else pointers.get(name)
        for name in (*names, "out")
    }
    types = {name: kind or f"*{DTYPES[dtype]}" for name, kind in types.items()}
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(types))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"flex_{hashlib.sha256(text.encode()).hexdigest()[:16]}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made = triton.compile(
            ASTSource(fn=module.kernel, signature=types, constexprs={}, attrs=aligned),
            target=GPUTarget("cuda", 90, 32),
            options={part: blocks[part] for part in PARTS},
        )
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(made.asm["ptx"])
        tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
        ptxas = (tools / name for name in ("ptxas-blackwell", "ptxas"))
        words = [
            next(filter(Path.exists, ptxas)),
            "-v",
            "--gpu-name=sm_90a",
            ptx,
            "-o",
            Path(folder) / "kernel.cubin",
        ]
        log = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", log)
    ((stores, loads),) = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return Compiled(made.metadata.shared, int(registers), max(int(stores), int(loads)))


def sizes(kernel: str, blocks: dict[str, int]) -> str:
    return "x".join(str(blocks[name]) for name in OF_INDUCTOR[kernel].values())


def shown(rows: pd.DataFrame) -> list[list[str]]:
    """The table of the kernels in bfloat16, of rows as text."""
    table = rows[rows["dtype"] == "bf16"].drop(columns="dtype")
    return [list(table), *table.to_numpy().tolist()]


def rows() -> list[dict[str, Any]]:
    """Each kernel with Inductor's block sizes and with ours."""
    found = []
    every = itertools.product(DTYPES, (32, 64, 128), (1, 2), FILES)
    for dtype, queries, factor, kernel in tqdm([*every], desc="kernels"):
        values = queries * factor
        choices = {"Inductor": of_inductor(kernel, queries, dtype)}
        if dtype.itemsize == 2 and (ours := of_tape(kernel, queries, values)):
            choices["tape.attention.flex"] = ours
        for whose, blocks in choices.items():
            made = compiled(kernel, queries, values, dtype, blocks)
            cells = [kernel, DTYPES[dtype], queries, values, whose, sizes(kernel, blocks)]
            cells += [*(blocks[part] for part in PARTS), *made]
            found.append(dict(zip(COLUMNS, cells, strict=True)))
    return found


@expected_errors()
def main(given: list[str] | None = None) -> None:
    parser = Parser(prog="python benchmarks/flex_blocks.py", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=result_folder, default="output/flex_blocks")
    out = parser.parse_args(given).out
    table = pd.DataFrame(rows())
    write_text(out / "rows.csv", table.to_csv(index=False))
    print(markdown_table(shown(table.astype(str))))


if __name__ == "__main__":
    main()
