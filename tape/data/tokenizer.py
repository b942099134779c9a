"""The tokenizer: trained on the corpus and cached, or any of the Hugging Face family."""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tape.data.corpora import Corpus
from tape.files import new_folder

log = logging.getLogger(__name__)

END, PADDING = "<|endoftext|>", "<|padding|>"
BYTES = 256


def train_tokenizer(corpus: Corpus, vocab_size: int, cache_dir: Path) -> PreTrainedTokenizerBase:
    """A byte-level BPE with `vocab_size` tokens, trained on the corpus's sample once.

    Its end-of-text token serves as BOS and EOS; padding has a token of its own.

    Raises:
        ValueError: if the vocabulary cannot even hold the bytes, or the text yields fewer tokens.
    """
    if vocab_size < BYTES + 2:
        raise ValueError(f"vocab_size={vocab_size} is below {BYTES + 2}: every byte and 2 special")
    key = hashlib.sha256(f"{corpus.fingerprint()} bpe {vocab_size}".encode()).hexdigest()[:16]
    folder = cache_dir / "tokenizers" / key
    if not folder.is_dir():
        log.info("training a tokenizer of %s tokens", f"{vocab_size:,}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END, PADDING],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=sys.stderr.isatty(),
        )
        tokenizer.train_from_iterator(corpus.sample(), trainer)
        if tokenizer.get_vocab_size() != vocab_size:
            raise ValueError(
                f"the training text is too small for vocab_size={vocab_size}: it yields "
                f"{tokenizer.get_vocab_size()} tokens; lower vocab_size, or add text"
            )
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=PADDING
        )
        with new_folder(folder) as work:
            fast.save_pretrained(work)
    return load_tokenizer(str(folder))


def load_tokenizer(name_or_folder: str) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder or from the hub.

    Raises:
        ValueError: if it cannot be found, or has no end-of-text token to join documents with.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_folder)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"tokenizer={name_or_folder!r} is neither a folder with a tokenizer nor to be had "
            f"from the hub: {error}"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer={name_or_folder!r} has no fast version (tokenizer.json)")
    if tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer={name_or_folder!r} has no EOS token to join documents with")
    return tokenizer
