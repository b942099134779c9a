"""The size in bytes of the text that tokens stand for, of which bits per byte are."""

import json
import re

import numpy as np
from transformers import PreTrainedTokenizerBase

from tape.data.blocks import TokenStream
from tape.data.tokenizer import unknown_id

BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token of a single byte in SentencePiece's vocabularies
SPACE = "\u2581"  # the sign of a space there
# Normalizers of SentencePiece, which can be undone.
SENTENCEPIECE = [
    {"type": "Prepend", "prepend": SPACE},
    {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
]
PROBE = "a   b\n\n1c"  # whose tokens stand for as many bytes, or one more, if none are left out


def text_bytes(
    tokenizer: PreTrainedTokenizerBase, stream: TokenStream, which: np.ndarray
) -> int | None:
    """Returns the size in UTF-8 of the text that some tokens of a stream stand for. EOS stands for
    none; neither does the space that a tokenizer adds before a document. The size may be one byte
    short for each document that begins with a space, if the tokenizer itself adds one.

    Args:
        which: (M,) places in the stream.

    Returns:
        None for a tokenizer whose tokens do not stand for bytes, such as one of whole words, one
        that changes texts (by NFC, lower case, or spaces around punctuation), or one that spells
        the sign of a space in bytes; and if one of the tokens is unknown.
    """
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary, end = tokenizer.get_vocab(), tokenizer.eos_token_id
    if "ByteLevel" in json.dumps(backend["decoder"]):
        sizes = {id_: len(token) for token, id_ in vocabulary.items()}  # a character for each byte
        reversible = [{"type": "ByteLevel"}]
    elif backend["model"].get("byte_fallback") and SPACE in vocabulary:
        sizes = {
            id_: 1 if BYTE.fullmatch(token) else len(token.replace(SPACE, " ").encode())
            for token, id_ in vocabulary.items()
        }
        reversible = SENTENCEPIECE
    else:
        return None
    normalizer = backend["normalizer"] or {"normalizers": []}
    if any(part not in reversible for part in normalizer.get("normalizers", [normalizer])):
        return None
    for id_, token in tokenizer.added_tokens_decoder.items():
        if not token.special:
            sizes[id_] = len(token.content.encode())
    sizes[end] = 0
    of = np.zeros(max(sizes) + 1, np.int64)
    of[[*sizes]] = [*sizes.values()]
    added = of[tokenizer(PROBE, add_special_tokens=False)["input_ids"]].sum() - len(PROBE)
    tokens, unknown = stream.tokens, unknown_id(tokenizer)
    if added not in (0, 1) or (unknown not in (None, end) and (tokens[which] == unknown).any()):
        return None
    counts = np.bincount(tokens, minlength=len(of))
    short = stream.bytes - (counts @ of - added * counts[end])
    if not 0 <= short <= added * stream.documents:
        return None
    return int(of[tokens[which]].sum() - added * (tokens[which - 1] == end).sum())
