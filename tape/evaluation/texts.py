"""Texts that models are scored on: token ids on disk, from LongLoRA's files or a corpus."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

import tape.data
from tape.data import Corpus, load_tokenizer, tokenize_corpus
from tape.data.blocks import token_fingerprint
from tape.data.corpora import WholeText
from tape.evaluation import scoring
from tape.evaluation.extension import extended
from tape.evaluation.journal import Shard, answering, complete_shard, join
from tape.evaluation.windows import Batch
from tape.files import read_object, reading
from tape.model.checkpoint import check_length, identified, load_model
from tape.model.modeling import TapeForCausalLM
from tape.parsers import CORPORA
from tape.runs.folder import TRAINED
from tape.validation import suggestion

CHUNK_TOKENS = 2**24  # tokens to hash at a time
# Of files that hold text: read as token ids, they would seem to be some.
OF_TEXT = {".txt", ".md", ".rst", ".py", ".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst"}
FILES = ("files", "validation", "dir")  # settings of corpora that name theirs
Record = Callable[[Batch, np.ndarray], dict[str, Any]]  # of a batch and its losses


@dataclass(frozen=True)
class Text:
    """`length` token ids of `dtype` from the beginning of a file without a header, read through a
    memory map that each process opens for itself."""

    name: str
    path: Path
    dtype: str
    length: int

    @property
    def tokens(self) -> np.ndarray:
        """(length,)"""
        return np.memmap(self.path, dtype=self.dtype, mode="r", shape=(self.length,))

    def check(self, vocabulary: int) -> None:
        """Raises a ValueError for the first id outside a vocabulary of this size."""
        if (tokens := self.tokens).max() >= vocabulary:
            place = int((tokens >= vocabulary).argmax())
            raise ValueError(
                f"{self.path}: token {place:,} is {tokens[place]:,}, beyond the model's vocabulary "
                f"of {vocabulary:,}; these ids come from another tokenizer: give a text tokenised "
                "with the model's own tokenizer"
            )

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the ids, independent of their file."""
        digest = hashlib.sha256()
        for first in range(0, self.length, CHUNK_TOKENS):
            digest.update(self.tokens[first : first + CHUNK_TOKENS].astype("<u4").tobytes())
        return digest.hexdigest()


def open_text(
    data: str,
    files: list[str] | None,
    model: Path,
    cache_dir: Path,
    most: int | None = None,
    whole: bool = False,
) -> Text:
    """Opens a file of tokens, or the validation split of a corpus.

    Args:
        data: path of a file of uint16 as LongLoRA publishes them, or the name of a corpus.
        files: files of that corpus.
        model: folder whose tokenizer encodes the corpus.
        most: number of tokens to take, from the beginning; None: all.
        whole: all documents of the files of "text", not only its validation split.

    Raises:
        ValueError: if there is no such text, it is no longer that of the run, or the file cannot
            hold uint16.
        OSError: if files of the corpus are missing.
    """
    if files is not None and data not in ("text", "c4"):
        raise ValueError(f"--files goes with --data text and --data c4, not with --data {data}")
    if whole and data != "text":
        raise ValueError(f"--whole goes with --data text, not with --data {data}")
    if data in CORPORA:
        corpus = corpus_of(data, files, model, whole)
        tokenizer = load_tokenizer(str(model))
        if data == "run":
            _check_unchanged(model, corpus, tokenizer)
        stream = tokenize_corpus(corpus, "validation", tokenizer, cache_dir)
        path, dtype, length = Path(stream.tokens.filename), stream.tokens.dtype.str, len(stream)
        name = corpus.name if whole else f"{corpus.name} (validation)"
    else:
        path = Path(data)
        if not path.is_file():
            hint = suggestion(data, CORPORA)
            raise ValueError(f"--data {data} is neither a file nor a corpus{hint}")
        if path.suffix in OF_TEXT:
            raise ValueError(
                f"--data {data} holds text, not token ids: give --data text --files {data}"
            )
        size = path.stat().st_size
        if size % 2 or not size:
            reason = "an odd number" if size else "none"
            raise ValueError(
                f"{path} has {size:,} bytes, {reason}: it must hold token ids as uint16"
            )
        name, dtype, length = path.name, "<u2", size // 2
    return Text(name, path, dtype, length if most is None else min(most, length))


def corpus_of(name: str, files: list[str] | None, model: Path, whole: bool) -> Corpus:
    """Returns a corpus by name; "run": the one that a model was trained on, with the same split.

    Raises:
        ValueError: if `files` do not suit it, or the run has no record of a text.
    """
    if name == "run":
        return _trained_on(model)
    if name == "text":
        if files is None:
            raise ValueError("--data text needs --files (paths, folders or globs)")
        if whole:
            return WholeText(files)
        corpus = tape.data.TextCorpus(files)
        corpus.remedy = "--whole scores all of --files"
        return corpus
    if name == "c4":
        if files is not None and len(files) > 1:
            raise ValueError(f"--data c4 takes one folder of shards, not {len(files)} --files")
        return tape.data.C4Corpus(files and files[0])
    return tape.data.LocalCorpus() if name == "local" else tape.data.BigramCorpus()


def _trained_on(folder: Path) -> Corpus:
    if not (folder / TRAINED).is_file():
        raise ValueError(f"--data run: {folder} has no {TRAINED}; give the text's name or file")
    with reading(folder / TRAINED):
        settings = dict(read_object(folder / TRAINED)["data"])
        package, _, kind = settings.pop("_target_").rpartition(".")
    corpus = getattr(tape.data, kind, None) if package == tape.data.__name__ else None
    if not (isinstance(corpus, type) and issubclass(corpus, Corpus)):
        raise ValueError(f"--data run: {folder} was not trained on a text; give --data local")
    return corpus(**settings)


def _check_unchanged(folder: Path, corpus: Corpus, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises a ValueError if a run has validated on other tokens than the corpus now has."""
    with reading(folder / TRAINED):
        recorded = read_object(folder / TRAINED)
        before, settings = recorded["tokens"]["validation"], recorded["data"]
    if token_fingerprint(corpus, "validation", tokenizer) != before:
        given = [f"{name}={settings[name]}" for name in FILES if settings.get(name) is not None]
        raise ValueError(
            f"--data run: {', '.join(given) or corpus.name} or the tokenizer has changed since "
            f"{folder} was trained: restore it, or give another text, as in --data text --files x"
        )


def opened(arguments: argparse.Namespace, longest: int) -> tuple[TapeForCausalLM, Text]:
    """Returns the model and the text of a command.

    Raises:
        ValueError, OSError: if windows of `longest` tokens, or the text, do not suit the model.
    """
    position = extended(arguments, arguments.model)
    model = load_model(arguments.model, scoring.DTYPES[arguments.dtype], position=position)
    check_length(model, longest, f"--lengths {longest}")
    cache, most = Path(os.environ.get("TAPE_CACHE", "cache")), arguments.max_tokens
    data, files, whole = arguments.data, arguments.files, arguments.whole
    text = open_text(data, files, arguments.model, cache, most, whole)
    text.check(model.config.vocab_size)
    return model, text


def walk(
    arguments: argparse.Namespace,
    model: TapeForCausalLM,
    text: Text,
    batches: list[Batch],
    asked: dict[str, Any],
    place: str,
    record: Record,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Scores the batches of one shard; a repeated call continues.

    Args:
        asked: what the losses depend on besides weights and text.
        place: beginning of the folder's name, which a hash of `asked` completes.
        record: a function of a module; other processes call it.

    Returns:
        Hashes of the `model` and the `text`; the records of all batches in their order, with their
        number, `batch`.

    Raises:
        Incomplete: if other shards are missing.
    """
    header = {**identified(arguments.model), "text": text.fingerprint(), **asked}
    header["batches"] = len(batches)
    if (position := extended(arguments, arguments.model)) is not None:
        header["position"] = position
    results = Path(place + hashlib.sha256(json.dumps(header).encode()).hexdigest()[:12])
    load = partial(_load, dtype=scoring.DTYPES[arguments.dtype], position=position)
    answer = partial(_answer, text=text, record=record)
    complete_shard(
        results,
        Shard.parse(arguments.shard),
        header,
        batches,
        answering(arguments.model, model, None, answer, arguments.processes, load),
        lambda batch, found: found,
        title=lambda batch: f"windows of {batch.length:,}",
    )
    return join(results)


def _load(
    folder: Path, dtype: torch.dtype, position: dict[str, Any] | None
) -> tuple[TapeForCausalLM, None]:
    return load_model(folder, dtype, position=position), None


def _answer(
    model: TapeForCausalLM, tokenizer: None, batch: Batch, text: Text, record: Record
) -> dict[str, Any]:
    return record(batch, scoring.losses(model, text.tokens, batch))
