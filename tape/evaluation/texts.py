"""Texts that models are scored on: token ids on disk, from LongLoRA's files or a corpus."""

import argparse
import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tape.data
from tape.core.files import read_object, reading
from tape.core.provenance import TRAINED
from tape.core.validation import suggestion
from tape.data import Corpus, load_tokenizer, tokenize_corpus
from tape.data.blocks import FACTS, token_fingerprint
from tape.data.corpora import Split, TextCorpus, WholeText
from tape.evaluation import TEXTS

CHUNK_TOKENS = 2**24  # tokens to read at a time
TINY, LEAST = 8, 16  # the higher half of a uint32 id is less; pairs of numbers that tell it
ARRAY = b"\x93NUMPY"
# Of files that hold text: read as token ids, they would seem to be some.
OF_TEXT = {".txt", ".md", ".rst", ".py", ".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst"}


class Text(NamedTuple):
    """Token ids, mapped into memory from a file without a header."""

    name: str
    path: Path
    tokens: np.ndarray  # (N,)
    end: int | None = None  # the token after each document; None: one document, or unknown

    def check(self, vocabulary: int) -> None:
        """Raises a ValueError for the first id outside a vocabulary of this size."""
        if (tokens := self.tokens).max() >= vocabulary:
            place = int((tokens >= vocabulary).argmax())
            raise ValueError(
                f"{self.path}: token {place:,} is {tokens[place]:,}, beyond the model's vocabulary "
                f"of {vocabulary:,}; these ids come from another tokenizer: give a text tokenised "
                "with the model's own tokenizer"
            )

    def documents(self, places: np.ndarray) -> np.ndarray:
        """Returns the number, from 0, of the document to which the token at each place belongs."""
        if self.end is None:
            return np.zeros(len(places), int)
        return np.searchsorted(np.flatnonzero(self.tokens == self.end), places)

    def fingerprint(self) -> str:
        """Returns the SHA-256 of the ids, independent of their file."""
        digest = hashlib.sha256()
        for first in range(0, len(self.tokens), CHUNK_TOKENS):
            digest.update(self.tokens[first : first + CHUNK_TOKENS].astype("<u4").tobytes())
        return digest.hexdigest()


def asked_text(arguments: argparse.Namespace, model: Path, most: int | None) -> Text:
    """Opens the text that a command's arguments name (see `open_text`)."""
    cache = Path(os.environ.get("TAPE_CACHE", "cache"))
    return open_text(
        arguments.data,
        arguments.files,
        model,
        cache,
        most,
        arguments.whole,
        arguments.token_dtype,
        arguments.split,
    )


def open_text(
    data: str,
    files: list[str] | None,
    model: Path,
    cache_dir: Path,
    most: int | None = None,
    whole: bool = False,
    token_dtype: str | None = None,
    split: Split = "validation",
) -> Text:
    """Opens a file of tokens, or a split of a corpus; raises a ValueError or an
    OSError if there is none, or it is no longer that of the run.

    Args:
        data: path of a file of token ids as LongLoRA publishes them, or the name of a corpus.
        files: files of that corpus.
        model: folder whose tokenizer encodes the corpus.
        most: number of tokens to take, from the beginning; None: all.
        whole: all documents of the files of "text", not only its validation split.
        token_dtype: of a file of token ids; None: as recorded beside it, or uint16.
        split: of the corpus; some corpora have a test split.
    """
    if token_dtype is not None and data in TEXTS:
        raise ValueError(f"--token_dtype goes with a file of token ids, not with --data {data}")
    if files is not None and data not in ("text", "c4"):
        what = f"--files goes with --data text and --data c4, not with --data {data}"
        raise ValueError(f"{what}: give --data text --files ..., or leave out --files")
    if whole and data != "text":
        raise ValueError(f"--whole goes with --data text, not with --data {data}")
    if split != "validation" and (whole or data not in TEXTS):
        raise ValueError(f"--split {split} goes with a corpus, such as --data english")
    if data in TEXTS:
        corpus = trained_on(model) if data == "run" else corpus_of(data, files, whole)
        if data == "text" and not whole:
            check_split(corpus, model)
        if split not in corpus.splits:
            have = " and ".join(corpus.splits)
            raise ValueError(f"--split {split}: {corpus.name} has {have} only")
        tokenizer = load_tokenizer(str(model))
        tokens = tokenize_corpus(corpus, split, tokenizer, cache_dir).tokens
        path = Path(tokens.filename)
        name = corpus.name if whole else f"{corpus.name} ({split})"
        return Text(name, path, tokens[:most], tokenizer.eos_token_id)
    check_file(path := Path(data))
    return Text(path.name, path, token_ids(path, token_dtype)[:most])


def check_file(path: Path) -> None:
    """Raises a ValueError for a file that holds something else than token ids."""
    if not path.is_file():
        hint = suggestion(str(path), TEXTS)
        raise ValueError(f"--data {path} is neither a file nor a corpus{hint}")
    if path.suffix in OF_TEXT:
        what = f"--data {path} holds text, not token ids"
        raise ValueError(f"{what}: give --data text --files {path}")
    with path.open("rb") as file:
        if file.read(len(ARRAY)) == ARRAY:
            what = f"--data {path} is a NumPy file, which has a header"
            raise ValueError(f"{what}: write its ids by numpy.load({path.name!r}).tofile(FILE)")


def token_ids(path: Path, dtype: str | None) -> np.ndarray:
    """Maps a file of token ids into memory, (N,).

    Args:
        dtype: "uint16" or "uint32"; None: as recorded beside a file of the cache
            (`tape.data.blocks`), or else uint16.

    Raises:
        ValueError: if `dtype` differs from the recorded one; if the file's size is 0 or no multiple
            of the dtype's; or if a file without a known dtype seems to hold uint32, because every
            second number is tiny.
    """
    facts = path.with_name(FACTS)
    recorded = read_object(facts).get("dtype") if facts.is_file() else None
    if dtype and recorded and dtype != recorded:
        raise ValueError(f"--token_dtype {dtype}, but {facts} says {recorded}; leave it out")
    name = dtype or recorded or "uint16"
    width = np.dtype(name).itemsize
    if (size := path.stat().st_size) % width or not size:
        raise ValueError(f"{path} has {size:,} bytes: it must hold token ids as {name}")
    tokens = np.memmap(path, np.dtype(name).newbyteorder("<"), "r")
    if not (dtype or recorded) and len(tokens) >= 2 * LEAST and len(tokens) % 2 == 0:
        low, high = tokens[: 2 * CHUNK_TOKENS].reshape(-1, 2).T
        if high.max() < TINY <= low.max():
            raise ValueError(
                f"{path} seems to hold uint32 and not uint16: every second number is below {TINY}; "
                "give --token_dtype uint32, or uint16 if it is"
            )
    return tokens


def corpus_of(name: str, files: list[str] | None, whole: bool) -> Corpus:
    """Returns a corpus by name; raises a ValueError if `files` do not suit it."""
    if name == "text":
        if files is None:
            what = "--data text needs --files (paths, folders or globs)"
            raise ValueError(f"{what}; --data local needs none: it is Python's own source code")
        if whole:
            return WholeText(files)
        corpus = tape.data.TextCorpus(files)
        corpus.remedy = "--whole scores all of --files"
        return corpus
    if name == "c4":
        if files is not None and len(files) > 1:
            raise ValueError(f"--data c4 takes one folder of shards, not {len(files)} --files")
        return tape.data.C4Corpus(files and files[0])
    others = {"local": "LocalCorpus", "english": "EnglishCorpus", "bigrams": "BigramCorpus"}
    return getattr(tape.data, others[name])()


def recorded_corpus(path: Path) -> tuple[type[Corpus] | None, dict[str, Any]]:
    """Returns the class of the corpus in the record of a run and its settings; None for data of
    another kind."""
    recorded = read_object(path)
    with reading(path):
        settings = dict(recorded["data"])
        package, _, name = settings.pop("_target_").rpartition(".")
    found = getattr(tape.data, name, None) if package == tape.data.__name__ else None
    is_corpus = isinstance(found, type) and issubclass(found, Corpus)
    return found if is_corpus else None, settings


def check_split(corpus: TextCorpus, model: Path) -> None:
    """Raises a ValueError if the validation split of a corpus may contain text that the model was
    trained on.

    This is so if the model was trained on some of the same files with another split. One other
    split is safe: if documents are held out by their hashes, a smaller share of them is part of the
    share that was held out in training.
    """
    path = model / TRAINED
    kind, settings = recorded_corpus(path) if path.is_file() else (None, {})
    if kind is not TextCorpus:
        return
    try:
        own = TextCorpus(**settings)
    except OSError:  # its files are gone
        return
    files = own.files if own.parts is None else own.parts["train"]
    trained, asked = ({*map(Path.resolve, each)} for each in (files, corpus.files))
    by_hash = own.parts is None and not (own.is_lone or corpus.is_lone)
    alike = (trained, own.rule) == (asked, corpus.rule)
    if trained & asked and not (alike or (by_hash and corpus.highest <= own.highest)):
        what = f"{model} was trained on {min(trained & asked)}, split otherwise for validation"
        remedy = "give --data run, or --whole to score what it was trained on, too"
        raise ValueError(f"--files: {what}; {remedy}")


def trained_on(folder: Path) -> Corpus:
    """Returns the corpus that a run was trained on, with the same split; raises a ValueError if
    there is none, or it now has other tokens than the run has validated on."""
    path = folder / TRAINED
    if not path.is_file():
        raise ValueError(f"--data run: {folder} has no {TRAINED}; give the text's name or file")
    kind, settings = recorded_corpus(path)
    if kind is None:
        raise ValueError(f"--data run: {folder} was not trained on a text; give --data local")
    corpus = kind(**settings)
    with reading(path):
        before = read_object(path)["tokens"]["validation"]
    if token_fingerprint(corpus, "validation", load_tokenizer(str(folder))) != before:
        what = f"{corpus.name} or the tokenizer has changed since {folder} was trained"
        remedy = "restore it, or give another text, as in --data text --files x"
        raise ValueError(f"--data run: {what}: {remedy}")
    return corpus
