"""Documents joined by EOS as one token stream on disk, and a dataset of blocks cut from it.

The stream is cached by content (corpus, split, tokenizer) and memory-mapped, so a block of any
length is a slice; only the last partial block is dropped.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from tape.core.files import new_folder, read_or_discard
from tape.core.progress import track
from tape.data.corpora import Corpus, Split
from tape.data.tokenizer import unknown_id, vocabulary_size

log = logging.getLogger(__name__)

DOCUMENTS_AT_ONCE = 256
CHARACTERS_AT_ONCE = 2**23
TOKENS_AT_ONCE = 2**24
FACTS = "facts.json"  # beside the tokens: their dtype and number
MAX_UNKNOWN = 0.1  # share of the tokens of a text
Item = TypeVar("Item")


@dataclass(frozen=True)
class TokenStream:
    """All tokens of a split as a read-only array on disk."""

    tokens: np.ndarray
    documents: int
    bytes: int
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
    facts = json.loads((folder / FACTS).read_text())
    documents, size, count = (int(facts[name]) for name in ("documents", "bytes", "tokens"))
    path, dtype = folder / "tokens.bin", token_dtype(tokenizer)
    if facts["dtype"] != dtype.name or path.stat().st_size != count * dtype.itemsize:
        raise ValueError(f"{path.stat().st_size:,} bytes for {count:,} tokens in {facts['dtype']}")
    tokens = np.memmap(path, dtype, "r")
    if (largest := int(tokens.max())) >= vocabulary_size(tokenizer):
        raise ValueError(f"its tokenizer has no token {largest:,}")
    return TokenStream(tokens, documents, size, folder.name)


def _write_stream(
    corpus: Corpus, split: Split, tokenizer: PreTrainedTokenizerBase, folder: Path
) -> None:
    dtype, documents, size, count = token_dtype(tokenizer), 0, 0, 0
    title = f"tokenizing {corpus.name} ({split})"
    bar = track(desc=title, unit="B", unit_scale=True)
    with bar, (folder / "tokens.bin").open("wb") as file:
        for batch in batches(corpus.documents(split)):
            for ids in encode(tokenizer, batch):
                file.write(ids.astype(dtype))
                count += len(ids)
            documents += len(batch)
            size += sum(len(text.encode()) for text in batch)
            bar.update(size - bar.n)
    if not documents:
        raise corpus.no_documents(split)
    facts = {"dtype": dtype.name, "documents": documents, "bytes": size, "tokens": count}
    (folder / FACTS).write_text(json.dumps(facts))
    log.info("%s: %s tokens", title, f"{count:,}")


def token_fingerprint(corpus: Corpus, split: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hashes everything that determines the tokens of a split to 16 hexadecimal digits."""
    content = f"{corpus.fingerprint()} {split} {tokenizer_fingerprint(tokenizer)}"
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    written = tokenizer.backend_tokenizer.to_str() + str(tokenizer.eos_token_id)
    return hashlib.sha256(written.encode()).hexdigest()


def token_dtype(tokenizer: PreTrainedTokenizerBase) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary_size(tokenizer) <= 2**16 else np.uint32)


def check_unknown(
    tokenizer: PreTrainedTokenizerBase, text: str, parts: Iterable[np.ndarray], ends: int = 0
) -> None:
    """Warns if tokens of a text are unknown: a model predicts them without knowing the text. Raises
    a ValueError if their share exceeds MAX_UNKNOWN.

    Args:
        text: its name.
        parts: (N,) token ids each, of which `ends` are EOS after a document.
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

    Raises:
        ValueError: if the tokenizer has no token for a part of a text.
    """
    found, ends = [], accumulate(map(len, texts))
    how = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    # In batches of bounded size: the tokenizer takes some hundred bytes of memory per token.
    for _, group in groupby(texts, key=lambda _: next(ends) // CHARACTERS_AT_ONCE):
        try:
            encoded = tokenizer([*group], **how)["input_ids"]
        except Exception as error:
            if type(error) is not Exception:  # which tokenizers raises for such a text
                raise
            raise ValueError(
                f"the tokenizer has no token for a part of the text ({error}): use a model that "
                "was trained on such text"
            ) from error
        found += [np.array(ids, dtype=np.uint32) for ids in encoded]
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
            count = f"{len(stream):,} tokens are fewer than one block of length={length}"
            raise ValueError(f"{count}; give more text or a smaller length")
        self.stream, self.length = stream, length
        whole = len(stream) // length
        self.numbers = np.arange(whole)
        if limit is not None and limit < whole:
            self.numbers = np.linspace(0, whole - 1, limit).astype(np.int64)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = self.numbers[index] * self.length
        return as_example(self.stream.tokens[start : start + self.length])


def permutation(count: int, seed: int, number: int) -> np.ndarray:
    """Returns a permutation of range(count) determined by the arguments. NumPy guarantees the
    stream of RandomState across versions, but not that of default_rng."""
    return np.random.RandomState([seed, number]).permutation(count)


class EpochOrder(Dataset):
    """The `total` sequences of a run in training order, a new one in each epoch. Sequence n is a
    function of n and the seed, independent of the number of processes and of interruptions."""

    def __init__(self, sequences: Dataset, total: int, seed: int):
        self.sequences, self.total, self.seed = sequences, total, seed
        self._epoch: tuple[int, np.ndarray] | None = None

    def _order(self, epoch: int) -> np.ndarray:
        return permutation(len(self.sequences), self.seed, epoch)

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, n: int) -> dict[str, torch.Tensor]:
        epoch, place = divmod(n, len(self.sequences))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = epoch, self._order(epoch)
        return self.sequences[self._epoch[1][place]]


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
        blocks = self.sequences
        first = self._order(0)[: min(self.total, max(1, tokens // blocks.length))]
        starts = np.sort(blocks.numbers[first]) * blocks.length
        return np.stack([blocks.stream.tokens[n : n + blocks.length] for n in starts])
