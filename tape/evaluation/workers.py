"""Answers the batches of an evaluation, in this process or in several.

On a CPU the operations of a small model are too short to be shared by threads: several processes
with one thread each are faster.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.evaluation.journal import Journal, Shard
from tape.model.checkpoint import load
from tape.model.modeling import TapeForCausalLM
from tape.runs.folder import locked

Load = Callable[[Path], tuple[TapeForCausalLM, PreTrainedTokenizerBase | None]]
Answer = Callable[[TapeForCausalLM, PreTrainedTokenizerBase | None, Any], Any]
Answered = Callable[[dict[int, Any]], Iterator[tuple[int, Any]]]


def complete_shard(
    results: Path,
    shard: Shard,
    header: dict[str, Any],
    batches: Sequence[Any],
    answered: Answered,
    row: Callable[[Any, Any], dict[str, Any]],
    title: Callable[[Any], str] = lambda batch: "",
) -> None:
    """Answers the batches of one shard of an evaluation that are not in its journal yet.

    Args:
        batches: each with its `cost`, the tokens to run, roughly proportional to time.
        answered: yields the numbers of batches, in any order, with their answers.
        row: returns the record of a batch and its answers.
        title: returns a text to show beside the progress bar.
    """
    with locked(shard.folder(results)):
        journal = Journal(results, shard, header)
        done = {row["batch"] for row in journal.rows}
        own = shard.numbers(len(batches))
        missing = {number: batches[number] for number in own if number not in done}
        before, total = (sum(batches[n].cost for n in numbers) for numbers in (done, own))
        how = {"unit": "token", "unit_scale": True, "disable": None}
        with tqdm(total=total, initial=before, **how) as bar:
            for number, given in answered(missing):
                batch = batches[number]
                bar.set_postfix_str(title(batch))
                journal.append({"batch": number, **row(batch, given)})
                bar.update(batch.cost)


def answering(
    folder: Path,
    model: TapeForCausalLM,
    tokenizer: PreTrainedTokenizerBase | None,
    answer: Answer,
    processes: int | None,
    load: Load = load,
) -> Answered:
    """Returns a function that answers batches with the model from `folder`.

    Args:
        answer, load: functions of a module, or partials of one; other processes call them.
        processes: 1 for this process; None for one per thread of torch, on a GPU this process.
    """
    if processes is None:
        processes = torch.get_num_threads() if model.device.type == "cpu" else 1
    if processes > 1:
        return partial(_side_by_side, processes, (folder, answer, load))
    return lambda batches: ((n, answer(model, tokenizer, x)) for n, x in batches.items())


def _side_by_side(
    processes: int, work: tuple[Path, Answer, Load], batches: dict[int, Any]
) -> Iterator[tuple[int, Any]]:
    """Answers in processes that load the model; yields each batch when it is done."""
    most = min(processes, max(1, len(batches)))
    with ProcessPoolExecutor(most, get_context("spawn"), _begin, work) as pool:
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


def _begin(folder: Path, answer: Answer, load: Load) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    Thread(target=_end_with_parent, daemon=True).start()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    _work = (answer, *load(folder))


def _end_with_parent() -> None:
    parent_process().join()  # even one that was killed
    os._exit(1)


def _answer(batch: Any) -> Any:
    answer, model, tokenizer = _work
    return answer(model, tokenizer, batch)
