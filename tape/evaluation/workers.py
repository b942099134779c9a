"""Working through the batches of an evaluation, in this process or in several.

On a CPU, where the operations of a small model are too short to be shared by threads, each of
several processes does as much as one alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch
import transformers
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.evaluation.checkpoint import load
from tape.evaluation.journal import Journal
from tape.modeling import TapeForCausalLM


class Batch(Protocol):
    """What is answered together."""

    @property
    def cost(self) -> int:
        """Tokens to run: what time is about proportional to."""


Loaded = tuple[TapeForCausalLM, PreTrainedTokenizerBase | None]
Load = Callable[[Path], Loaded]
Answer = Callable[[TapeForCausalLM, PreTrainedTokenizerBase | None, Any], Any]
Answered = Callable[[dict[int, Any]], Iterator[tuple[int, Any]]]


def complete(
    journal: Journal,
    batches: dict[int, Batch],
    answered: Answered,
    row: Callable[[Any, Any], dict[str, Any]],
    title: Callable[[Any], str] = lambda batch: "",
) -> None:
    """Answer those batches of a share that are not in its journal yet.

    Args:
        answered: the numbers of batches, in any order, and the answers to each.
        row: what to record of a batch and its answers.
        title: what to show of a batch beside the bar.
    """
    done = {row["batch"] for row in journal.rows}
    bar = tqdm(
        total=sum(batch.cost for batch in batches.values()),
        initial=sum(batches[number].cost for number in done),
        unit="token",
        unit_scale=True,
        disable=None,
    )
    with bar:
        missing = {number: batch for number, batch in batches.items() if number not in done}
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
    """Answer with the model from `folder`, in this process or in several; None: in one for each
    thread of torch, on a GPU in this one. `answer` and `load`, by which others get what this one
    has, are functions of a module, or partials of one.
    """
    if processes is None:
        processes = torch.get_num_threads() if model.device.type == "cpu" else 1
    if processes > 1:
        return side_by_side(folder, answer, processes, load)
    return lambda batches: (
        (number, answer(model, tokenizer, batch)) for number, batch in batches.items()
    )


def side_by_side(folder: Path, answer: Answer, processes: int, load: Load = load) -> Answered:
    """Answer in `processes` that load the model in `folder`: each batch as soon as it is done."""

    def answered(batches: dict[int, Any]) -> Iterator[tuple[int, Any]]:
        begin = (folder, answer, load)
        most = min(processes, max(1, len(batches)))
        with ProcessPoolExecutor(most, get_context("spawn"), _begin, begin) as pool:
            try:
                numbers = {pool.submit(_answer, batch): number for number, batch in batches.items()}
                for done in as_completed(numbers):
                    yield numbers[done], done.result()
            except BrokenProcessPool as error:
                raise ChildProcessError(
                    "a worker process was killed, perhaps for lack of memory; repeat the command "
                    "to resume, with fewer processes=... if necessary"
                ) from error
            finally:
                pool.shutdown(cancel_futures=True)

    return answered


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
