"""Answers the batches of an evaluation, in shards that go on where they were killed.

A shard has a folder with a journal, parts.jsonl. Its first line, the header, holds the model's hash
and the settings; then comes one line per batch, on disk before the next batch begins.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import torch
import transformers

from tape.core.files import reading, write_text
from tape.core.progress import track
from tape.core.run_folder import differences, locked
from tape.model.checkpoint import REWRITTEN, load, state_of_files
from tape.model.modeling import TapeForCausalLM

FILE = "parts.jsonl"
# Files and folders of the run itself, in its folder.
OF_THE_RUN = re.compile(
    r"report|perplexity|checkpoint-\d+|.*\.(json|jsonl|safetensors|model|csv|png|md|txt)",
    re.IGNORECASE,  # as the file systems of some machines
)
Load = Callable[[Path], tuple[TapeForCausalLM, Any]]
Answer = Callable[[TapeForCausalLM, Any, Any], Any]  # of the model, what is beside it, and a batch
Answered = Callable[[dict[int, Any]], Iterator[tuple[int, Any]]]
Header = dict[str, Any]
Rows = list[dict[str, Any]]


class Incomplete(ValueError):
    """Batches of an evaluation have not been answered yet."""


class Shard(NamedTuple):
    """The index-th of `count` shards, from 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Raises a ValueError for anything but i/n with 1 <= i <= n."""
        numbers = re.fullmatch(r"(\d+)/(\d+)", text)
        shard = cls(*map(int, numbers.groups())) if numbers else cls(0, 0)
        if 1 <= shard.index <= shard.count:
            return shard
        raise ValueError(f"shard={text!r} must be i/n with 1 <= i <= n, as 1/4: the first of four")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def folder(self, results: Path) -> Path:
        return results / f"shard-{self.index}-of-{self.count}"

    def numbers(self, batches: int) -> range:
        """Returns the numbers of its batches: every count-th in the order of cost."""
        return range(self.index - 1, batches, self.count)


def read(path: Path) -> tuple[Header | None, Rows, int]:
    """Returns the header of a journal (None if it is empty), its batches, and the bytes of both
    without an unfinished last line; raises a ValueError for a damaged line before it."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    with reading(path):
        header, *rows = [json.loads(line) for line in whole.splitlines()] or [None]
        if header is not None:
            own = Shard.parse(header["shard"]).numbers(header["batches"])
            numbers = {row["batch"] for row in rows}
            if len(numbers) < len(rows) or not all(n in own for n in numbers):
                raise ValueError("batches are duplicated or belong to another shard: remove it")
    return header, rows, len(whole)


def journals(results: Path) -> dict[Path, tuple[Header, Rows]]:
    """Returns headers and batches of the journals in a folder, by file."""
    found = {path: read(path) for path in sorted(results.glob(f"shard-*/{FILE}"))}
    return {path: (header, rows) for path, (header, rows, _) in found.items() if header is not None}


def _check_same(path: Path, header: Header, expected: Header) -> None:
    before, now = ({**each, "shard": None} for each in (header, expected))
    if changes := differences(before, now):
        raise ValueError(
            f"{path} holds another evaluation ({'; '.join(changes)}): give this one another "
            f"name or folder, or remove {path.parents[1]} and the files created from it"
        )


def join(results: Path) -> tuple[Header, Rows]:
    """Returns the header of the evaluation in a folder, and the batches of all shards in order. If
    two shards have answered a batch, as 1/1 and 2/4 do, the first answer counts. Raises Incomplete
    if batches are missing, and a ValueError if the shards are not those of one evaluation."""
    found = journals(results)
    if not found:
        raise ValueError(f"{results} contains no evaluation")
    (first, _), *_ = found.values()
    owners: dict[int, Path] = {}
    rows: dict[int, dict[str, Any]] = {}
    for path, (header, answered) in found.items():
        _check_same(path, header, first)
        owners |= dict.fromkeys(Shard.parse(header["shard"]).numbers(header["batches"]), path)
        rows = {row["batch"]: row for row in answered} | rows
    if missing := {*range(first["batches"])} - rows.keys():
        where = sorted({str(owners.get(number, "a shard not started")) for number in missing})
        what = f"{len(missing)} of {first['batches']} batches are missing"
        raise Incomplete(f"{what}: run the evaluation of {', '.join(where)} to its end")
    first.pop("shard")
    return first, [rows[number] for number in sorted(rows)]


def complete_shard(
    results: Path,
    shard: Shard,
    header: Header,
    batches: Sequence[Any],
    answered: Answered,
    row: Callable[[Any, Any], dict[str, Any]],
) -> None:
    """Answers the batches of one shard of an evaluation that are not in its journal yet; raises a
    ValueError if the folder holds an evaluation of another model or with other settings.

    Args:
        results: the folder of all shards.
        header: the model, the settings, and the number of `batches`.
        batches: each with its `cost`, the tokens to run.
        answered: yields the numbers of batches, in any order, with their answers (`answering`).
        row: returns the record of a batch and its answers.
    """
    path, header, rows = shard.folder(results) / FILE, header | {"shard": str(shard)}, []
    with locked(path.parent):
        if path.exists():
            _, rows, size = read(path)
            os.truncate(path, size)
        for other, (begun, _) in journals(results).items():
            if other != path or rows:  # without rows, nothing has been answered with its header
                _check_same(other, begun, header)
        if not rows:
            write_text(path, json.dumps(header) + "\n")
        done, own = {row["batch"] for row in rows}, shard.numbers(len(batches))
        missing = {number: batches[number] for number in own if number not in done}
        before, total = (sum(batches[n].cost for n in numbers) for numbers in (done, own))
        how = {"unit": " tokens", "unit_scale": True}
        bar = track(desc="evaluation", total=total, initial=before, **how)
        with bar, path.open("a", encoding="utf-8") as file:
            for number, given in answered(missing):
                batch = batches[number]
                file.write(json.dumps({"batch": number, **row(batch, given)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
                bar.update(batch.cost)


def answering(
    folder: Path,
    model: TapeForCausalLM,
    beside: Any,
    answer: Answer,
    processes: int | None,
    load: Load = load,
) -> Answered:
    """Returns a function that answers batches with the model from `folder`.

    Args:
        beside: what `answer` takes beside the model, such as the tokenizer that `load` returns.
        answer, load: functions of a module, or partials of one; other processes call them.
        processes: 1 for this process; None for one per thread of torch, on a GPU this process: a
            small model's operations on a CPU are too short for threads to share.
    """
    if processes is None:
        processes = torch.get_num_threads() if model.device.type == "cpu" else 1
    if processes > 1:
        return partial(_side_by_side, processes, (folder, answer, load, model.read_from))
    return lambda batches: ((n, answer(model, beside, x)) for n, x in batches.items())


def _side_by_side(
    processes: int, work: tuple[Path, Answer, Load, Any], batches: dict[int, Any]
) -> Iterator[tuple[int, Any]]:
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, work) as pool:
        try:
            numbers = {pool.submit(_answer, batch): number for number, batch in batches.items()}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a worker process was killed, perhaps for lack of memory; repeat the command to "
                "resume, with fewer processes=... if necessary"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(folder: Path, answer: Answer, load: Load, files: Any) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    Thread(target=_end_with_parent, daemon=True).start()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    _work = (answer, *load(folder), state_of_files(folder) == files)


def _end_with_parent() -> None:
    parent_process().join()  # even one that was killed
    os._exit(1)


def _answer(batch: Any) -> Any:
    answer, model, beside, as_before = _work
    if not as_before:
        raise ValueError(f"the model {REWRITTEN}")
    return answer(model, beside, batch)
