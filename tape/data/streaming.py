"""Endless stream of token blocks whose position is one integer: the number of blocks consumed.

In each epoch the documents of all shards, in a new order, are tokenized and packed into blocks
without losing tokens, EOS after each document. Block n of the stream belongs to window n // window,
and the blocks of a window are permuted by (seed, window): the shuffle buffer of `datasets` is no
part of its `state_dict()`, and would differ after a resume. A file for each window has the state of
`datasets` at its start; without it the stream is replayed from the last known window.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from tape.data.blocks import (
    as_example,
    batches,
    check_unknown,
    encode,
    permutation,
    token_fingerprint,
)
from tape.data.c4 import C4Corpus
from tape.data.corpora import no_documents
from tape.data.readers import rows_of, texts
from tape.files import read_object, write_text

log = logging.getLogger(__name__)


class StreamedBlocks(IterableDataset):
    """Blocks of `length` tokens as inputs and labels of a causal model, from number `start` on,
    determined by the corpus, the tokenizer, `length` and `seed`.

    Raises:
        ValueError: when iterated in a worker, or over no documents.
    """

    def __init__(
        self,
        corpus: C4Corpus,
        tokenizer: PreTrainedTokenizerBase,
        length: int,
        cache_dir: Path,
        seed: int = 0,
        start: int = 0,
    ):
        self.corpus, self.tokenizer, self.length, self.seed = corpus, tokenizer, length, seed
        self.window, self.start = corpus.window, start
        content = token_fingerprint(corpus, "train", tokenizer)
        written = f"{content} {length} {seed} {self.window}"
        self.fingerprint = hashlib.sha256(written.encode()).hexdigest()[:16]
        version = f"datasets-{datasets.__version__}"  # which its states depend on
        self.folder = cache_dir / "streams" / self.fingerprint / version

    def describe(self) -> str:
        return "streamed"

    def seek(self, block: int) -> None:
        """Starts the next iteration at this block."""
        self.start = block

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if get_worker_info() is not None:
            raise ValueError("a stream is read in the main process: use 0 workers")
        first, skipped = divmod(self.start, self.window)
        windows = self._windows(first)
        # A window is tokenized while the device works on the one before it.
        with ThreadPoolExecutor(1) as thread:
            following = thread.submit(next, windows)
            for number in count(first):
                blocks, following = following.result(), thread.submit(next, windows)
                order = permutation(self.window, self.seed, number)
                yield from (as_example(blocks[which]) for which in order[skipped:])
                skipped = 0

    def _windows(self, first: int) -> Iterator[np.ndarray]:
        """Yields windows from `first` on, in text order: (window, length) tokens each."""
        known = (int(path.stem) for path in self.folder.glob("*.json"))
        number = max((window for window in known if window <= first), default=0)
        state = read_object(self._file(number)) if number else {}
        if number < first:
            log.info("replaying windows %s to %s of the stream", number, first - 1)
        size = self.window * self.length
        used, parts, room = state.get("used", 0), [], size
        for place, tokens in self._tokens(**state.get("documents", {})):
            while len(tokens) - used >= room:
                parts.append(tokens[used : used + room])
                used += room
                number += 1
                if not self._file(number).exists():
                    state = {"documents": place, "used": used}
                    write_text(self._file(number), json.dumps(state))
                if number > first:
                    yield np.concatenate(parts).reshape(self.window, self.length)
                parts, room = [], size
            parts.append(tokens[used:])
            room, used = room - len(parts[-1]), 0

    def _file(self, window: int) -> Path:
        return self.folder / f"{window}.json"

    def _tokens(
        self, epoch: int = 0, shard: int = 0, rows: dict[str, Any] | None = None
    ) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Yields the tokens of some documents, endlessly, each time with the arguments of this
        function that begin with these documents.

        Args:
            shard: its number in the epoch's order.
            rows: `state_dict()` of its rows; None: all of them.
        """
        checked = False
        while True:
            whole, order = shard == 0 and rows is None, self.corpus.order(self.seed, epoch)
            for number in range(shard, len(order)):
                url = order[number].url
                dataset = rows_of(url, "text")
                if rows is None:
                    rows = dataset.state_dict()
                else:
                    dataset.load_state_dict(rows)
                for batch in batches(texts(dataset, url)):
                    encoded = encode(self.tokenizer, batch)
                    if not checked:  # these documents stand for all of them
                        check_unknown(self.tokenizer, self.corpus.name, encoded, len(encoded))
                        checked = True
                    yield {"epoch": epoch, "shard": number, "rows": rows}, np.concatenate(encoded)
                    rows = dataset.state_dict()
                rows = None
            if whole and not checked:
                raise no_documents(self.corpus, "train")
            epoch, shard = epoch + 1, 0
