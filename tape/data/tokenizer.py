"""Tokenizers: trained on the corpus and cached, or any Hugging Face tokenizer."""

import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tape.core.files import new_folder, read_or_discard
from tape.data.corpora import Corpus
from tape.model.tokenizer import read_tokenizer

log = logging.getLogger(__name__)

END, PADDING = "<|endoftext|>", "<|padding|>"
MAX_PIECE = 256  # characters per piece in texts with longer runs of characters
LONG_RUN = rf"\S{{{MAX_PIECE}}}|\s{{{MAX_PIECE}}}"


def train_tokenizer(corpus: Corpus, vocab_size: int, cache_dir: Path) -> PreTrainedTokenizerBase:
    """Trains a byte-level BPE with `vocab_size` tokens on the corpus's sample, cached on disk. Its
    end-of-text token serves as BOS and EOS; padding has its own token. Raises a ValueError if all
    bytes take more tokens, or the text yields fewer.

    If the sample has runs of more than `MAX_PIECE` characters without a space, such as Chinese or
    DNA, training and encoding cut them: training time is quadratic in the length of a piece.
    """

    def read(folder: Path) -> PreTrainedTokenizerBase:
        tokenizer = load_tokenizer(str(folder))
        if len(tokenizer) != vocab_size:
            raise ValueError(f"it has {len(tokenizer)} tokens, not vocab_size={vocab_size}")
        return tokenizer

    key = hashlib.sha256(f"{corpus.fingerprint()} bpe {vocab_size}".encode()).hexdigest()
    folder = cache_dir / "tokenizers" / key[:16]
    if (tokenizer := read_or_discard(folder, read)) is not None:
        return tokenizer
    log.info("training a tokenizer of %s tokens", f"{vocab_size:,}")
    trained, special = _train(corpus, vocab_size), {"bos_token": END, "eos_token": END}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, **special, pad_token=PADDING)
    with new_folder(folder) as work:
        tokenizer.save_pretrained(work)
    return load_tokenizer(str(folder))


def _train(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Returns a tokenizer, which cuts long runs if the sample has any."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    runs = pre_tokenizers.Split(Regex(LONG_RUN), "isolated")
    tokenizer, is_cut, documents = Tokenizer(models.BPE()), False, 0
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([runs, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=sys.stderr.isatty(),
    )

    def sample() -> Iterator[str]:
        nonlocal is_cut, documents
        for text in corpus.sample():
            documents += 1
            is_cut = is_cut or re.search(LONG_RUN, text) is not None
            yield text

    tokenizer.train_from_iterator(sample(), trainer)
    if not documents:
        raise corpus.no_documents("train")
    if tokenizer.get_vocab_size() != vocab_size:
        remedy = f"vocab_size={tokenizer.get_vocab_size()}, all tokens that it yields, or add text"
        raise ValueError(f"the training text is too small for {vocab_size=}: give {remedy}")
    if not is_cut:
        tokenizer.pre_tokenizer = words
    return tokenizer


def load_tokenizer(name_or_folder: str) -> PreTrainedTokenizerBase:
    """Returns `read_tokenizer`; raises a ValueError also if it has no end-of-text token to join
    documents with."""
    tokenizer = read_tokenizer(name_or_folder)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer={name_or_folder!r} has no EOS token to join documents with")
    return tokenizer


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Returns the number of embeddings that the tokenizer needs: its ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Returns the id that stands for text without a token of its own; None if there is none."""
    backend = tokenizer.backend_tokenizer
    model = json.loads(backend.to_str())["model"]
    if model["type"] == "Unigram":
        return model["unk_id"]
    name = model.get("unk_token")
    return None if name is None else backend.token_to_id(name)
