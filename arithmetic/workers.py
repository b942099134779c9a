"""Answering batches in several processes: on a CPU, where the operations of a small model are too
short to be shared by threads, each of them does as much as one alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import torch
import transformers

from arithmetic.decoding import answers, load
from arithmetic.plan import Batch


def answered(
    folder: Path, batches: dict[int, Batch], processes: int
) -> Iterator[tuple[int, list[str]]]:
    """Number and answers of each batch, as soon as it is done, by `processes` that load the model
    in `folder`."""
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (folder,)) as pool:
        try:
            numbers = {pool.submit(_answer, batch): number for number, batch in batches.items()}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BrokenProcessPool as error:
            raise ChildProcessError(
                "a process that answers problems was killed, perhaps for its memory; the same "
                "command continues, with fewer processes=... if you like"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(folder: Path) -> None:
    global _model, _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    Thread(target=_end_with_parent, daemon=True).start()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    _model, _tokenizer = load(folder)


def _end_with_parent() -> None:
    parent_process().join()  # even one that was killed
    os._exit(1)


def _answer(batch: Batch) -> list[str]:
    return answers(_model, _tokenizer, batch)
