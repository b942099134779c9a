"""Documents joined by EOS as one token stream on disk, and a dataset of blocks cut from it.

The stream is cached by content (corpus, split, tokenizer) and memory-mapped, so a block of any
length is a slice; only the last partial block is dropped.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from tape.data.corpora import Corpus, Split
from tape.data.tokenizer import unknown_id, vocabulary_size
from tape.files import new_folder, read_or_discard

log = logging.getLogger(__name__)

DOCUMENTS_AT_ONCE = 256
CHARACTERS_AT_ONCE = 2**23
TOKENS_AT_ONCE = 2**24
MAX_UNKNOWN = 0.1  # share of the tokens of a text
Item = TypeVar("Item")


@dataclass(frozen=True)
class TokenStream:
    """All tokens of a split as a read-only array on disk."""

    tokens: np.ndarray
    documents: int
    fingerprint: str  # of the corpus, the split and the tokenizer

    def __len__(self) -> int:
        return len(self.tokens)


def tokenize_corpus(
    corpus: Corpus, split: Split, tokenizer: PreTrainedTokenizerBase, cache_dir: Path
) -> TokenStream:
    """Returns the tokens of a split, cached on disk. Uses all cores.

    Raises:
        ValueError: if the split has no text, or too many of its tokens are unknown.
    """
    folder = cache_dir / "tokens" / token_fingerprint(corpus, split, tokenizer)
    stream = read_or_discard(folder, partial(_read_stream, tokenizer))
    if stream is None:
        with new_folder(folder) as work:
            _write_stream(corpus, split, tokenizer, work)
        stream = _read_stream(tokenizer, folder)
    check_unknown(tokenizer, f"{corpus.name} ({split})", [stream.tokens], stream.documents)
    return stream


def _read_stream(tokenizer: PreTrainedTokenizerBase, folder: Path) -> TokenStream:
    """Reads a stream written by `_write_stream`.

    Raises:
        ValueError, LookupError, TypeError, FileNotFoundError: if it is damaged.
    """
    facts = json.loads((folder / "facts.json").read_text())
    tokens = np.memmap(folder / "tokens.bin", token_dtype(tokenizer), "r")
    if len(tokens) != facts["tokens"] or tokens.max() >= vocabulary_size(tokenizer):
        raise ValueError(f"it has other tokens than the {facts['tokens']:,} that were written")
    return TokenStream(tokens, facts["documents"], folder.name)


def _write_stream(
    corpus: Corpus, split: Split, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    dtype, documents, count = token_dtype(tokenizer), 0, 0
    title = f"tokenizing {corpus.name} ({split})"
    bar = tqdm(desc=title, unit="B", unit_scale=True, disable=None)
    with bar, (folder / "tokens.bin").open("wb") as file:
        for batch in batches(corpus.documents(split)):
            for ids in encode(tokenizer, batch):
                file.write(ids.astype(dtype))
                count += len(ids)
            documents += len(batch)
            bar.update(sum(len(text.encode()) for text in batch))
    if not documents:
        raise corpus.no_documents(split)
    (folder / "facts.json").write_text(json.dumps({"documents": documents, "tokens": count}))
    log.info("%s: %s tokens", title, f"{count:,}")


def token_fingerprint(corpus: Corpus, split: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hashes everything that determines the tokens of a split to 16 hexadecimal digits."""
    content = f"{corpus.fingerprint()} {split} {tokenizer_fingerprint(tokenizer)}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.eos_token_id)
    return hashlib.sha256(written.encode()).hexdigest()


def token_dtype(tokenizer: PreTrainedTokenizerBase) -> np.dtype:
    """Returns the dtype of token ids on disk."""
    return np.dtype(np.uint16 if vocabulary_size(tokenizer) <= 2**16 else np.uint32)


def check_unknown(
    tokenizer: PreTrainedTokenizerBase, text: str, parts: Iterable[np.ndarray], ends: int = 0
) -> None:
    """Warns if tokens of a text are unknown: a model predicts them without knowing the text.

    Args:
        text: its name.
        parts: (N,) token ids each.
        ends: how many of the tokens are EOS after a document.

    Raises:
        ValueError: if their share exceeds MAX_UNKNOWN.
    """
    if (unknown := unknown_id(tokenizer)) is None:
        return
    total, found = -ends, -ends * (unknown == tokenizer.eos_token_id)
    for part in parts:
        total += len(part)
        cuts = range(0, len(part), TOKENS_AT_ONCE)  # bounds the memory of the comparison
        found += sum(np.count_nonzero(part[n : n + TOKENS_AT_ONCE] == unknown) for n in cuts)
    name = tokenizer.convert_ids_to_tokens(unknown)
    message = f"{text}: {found / max(total, 1):.1%} of the tokens are unknown ({name!r})"
    if found > MAX_UNKNOWN * total:
        raise ValueError(
            f"{message}: at most {MAX_UNKNOWN:.0%} may be; use a tokenizer that was trained on "
            "such text"
        )
    if found:
        log.warning("%s; losses and perplexities count them as if they were text", message)


def batches(documents: Iterable[Item]) -> Iterator[list[Item]]:
    documents = iter(documents)
    while batch := list(islice(documents, DOCUMENTS_AT_ONCE)):
        yield batch


def tokenize(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[np.ndarray]:
    """Tokenizes each text without special tokens; their names within a text are plain text.

    Returns:
        (N,) uint32 each; `token_dtype` is enough for them.
    """
    # On all cores; lengths beyond the model's are fine.
    how = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    # In batches of bounded size: the tokenizer takes some hundred bytes of memory per token.
    ends, found = accumulate(map(len, texts)), []
    for _, group in groupby(texts, key=lambda _: next(ends) // CHARACTERS_AT_ONCE):
        found += [np.array(ids, np.uint32) for ids in tokenizer([*group], **how)["input_ids"]]
    return found


def encode(tokenizer: PreTrainedTokenizerBase, batch: list[str]) -> list[np.ndarray]:
    """Returns the tokens of each document, followed by EOS."""
    end = np.uint32(tokenizer.eos_token_id)
    return [np.append(tokens, end) for tokens in tokenize(tokenizer, batch)]


def as_example(block: np.ndarray) -> dict[str, torch.Tensor]:
    """Returns inputs and labels of a causal model: (length,) int64 each."""
    ids = torch.from_numpy(block.astype(np.int64))
    return {"input_ids": ids, "labels": ids.clone()}


class TokenBlocks(Dataset):
    """Blocks of `length` tokens of a stream as inputs and labels of a causal model: all blocks in
    order, or `limit` of them, spread evenly.

    Raises:
        ValueError: if the stream is shorter than one block.
    """

    def __init__(self, stream: TokenStream, length: int, limit: int | None = None):
        if len(stream) < length:
            raise ValueError(
                f"{len(stream):,} tokens are fewer than one block of length={length}; "
                f"give more text or a smaller length"
            )
        whole, self.stream = len(stream) // length, stream
        self.blocks = stream.tokens[: whole * length].reshape(whole, length)
        if limit is not None and limit < whole:
            self.blocks = self.blocks[np.linspace(0, whole - 1, limit).astype(np.int64)]

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return as_example(self.blocks[index])


@lru_cache(2)
def permutation(count: int, seed: int, number: int) -> np.ndarray:
    """Returns a permutation of range(count) determined by the arguments. NumPy guarantees the
    stream of RandomState across versions, but not that of default_rng."""
    return np.random.RandomState([seed, number]).permutation(count)


class EpochOrder(Dataset):
    """The `total` sequences of a run in training order, a new one in each epoch. Sequence n is a
    function of n and the seed, independent of the number of processes and of interruptions."""

    def __init__(self, sequences: Dataset, total: int, seed: int):
        self.sequences, self.total, self.seed = sequences, total, seed

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(n, len(self.sequences))
        return self.sequences[permutation(len(self.sequences), self.seed, epoch)[place]]


class TrainingOrder(EpochOrder):
    """Blocks of a stream, shuffled in each epoch."""

    @property
    def fingerprint(self) -> str:
        """Identifies stream and shuffling rule; a run only continues with the same."""
        return f"{self.sequences.stream.fingerprint}, permuted by RandomState"

    def describe(self) -> str:
        return f"{len(self.sequences.stream):,}"

    def seen(self, tokens: int) -> np.ndarray:
        """Returns blocks of the first epoch that the run sees, about `tokens`: (N, length)."""
        blocks = self.sequences.blocks
        count = min(self.total, max(1, tokens // blocks.shape[1]))
        return blocks[np.sort(permutation(len(blocks), self.seed, 0)[:count])]
