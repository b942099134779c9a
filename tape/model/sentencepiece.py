"""SentencePiece's tokenizer.model (Kudo and Richardson 2018, arXiv 1808.06226) as a tokenizer.json.

A model of byte pairs (Sennrich et al. 2016) joins the adjacent pieces that make the piece of the
highest score, the first of equal ones; so does `tokenizers` with a rank for each pair. The two
differ in unigram models, where sums of scores are nearly equal, in maps of characters, at combined
ones, and where spaces are removed, at the sign of a space: these models are refused.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

SPACE = "\u2581"  # stands for a space in pieces
BYTE_PAIRS = 2  # `model_type` in trainer_spec
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # `type` of a piece
REMEDY = "give the tokenizer.json of the same model, as tokenizer=FOLDER or beside its config.json"


class Piece(Protocol):
    """A token, by its place among the pieces of a model; .gguf files have the same ones."""

    piece: str
    score: float
    type: int


def from_sentencepiece(path: Path, texts: list[str]) -> tuple[Tokenizer, dict[str, str]]:
    """Returns the tokenizer in a tokenizer.model, which adds no special tokens, and the names of
    these ("bos_token", ...). It is compared with sentencepiece on the texts and on all its pieces.

    Raises:
        ValueError: for a model that is not one of byte pairs, changes texts or has pieces of its
            user; if sentencepiece is not installed, or makes other tokens.
    """
    try:
        from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
    except ModuleNotFoundError as missing:
        raise ValueError(
            f"{path} needs {missing.name}: EXTRAS=sentencepiece bash script/setup.sh, or {REMEDY}"
        ) from missing
    content = path.read_bytes()
    proto = sentencepiece_model_pb2.ModelProto.FromString(content)
    trained, normal = proto.trainer_spec, proto.normalizer_spec
    kinds = {piece.type for piece in proto.pieces}
    others = {
        "a model of another type than byte pairs": trained.model_type != BYTE_PAIRS,
        f"a map of characters ({normal.name})": bool(normal.precompiled_charsmap),
        "a removal of spaces (remove_extra_whitespaces)": normal.remove_extra_whitespaces,
        "user-defined or unused pieces": bool(kinds - {NORMAL, UNKNOWN, CONTROL, BYTE}),
        "spaces after words": trained.treat_whitespace_as_suffix,
        "spaces as they are": not normal.escape_whitespaces,
    }
    if reasons := [name for name, is_so in others.items() if is_so]:
        raise ValueError(f"{path} has {' and '.join(reasons)}, which is not read: {REMEDY}")
    tokenizer = tokenizer_of(proto.pieces, normal.add_dummy_prefix, trained.byte_fallback)
    processor = SentencePieceProcessor(model_proto=content)
    texts = [*texts, *(p.piece.replace(SPACE, " ") for p in proto.pieces if p.type == NORMAL)]
    tokenizer.encode_special_tokens = True  # as text, like sentencepiece
    found = tokenizer.encode_batch(texts, add_special_tokens=False)
    tokenizer.encode_special_tokens = False
    for text, theirs, ours in zip(texts, processor.encode(texts), found, strict=True):
        if theirs != ours.ids:
            raise ValueError(f"{path}: sentencepiece makes other tokens of {text!r:.60}: {REMEDY}")
    ids = {name: getattr(processor, f"{name}_id")() for name in ("bos", "eos", "unk", "pad")}
    named = {f"{name}_token": processor.id_to_piece(n) for name, n in ids.items() if n >= 0}
    return tokenizer, named


def tokenizer_of(pieces: Sequence[Piece], prefix: bool, fallback: bool) -> Tokenizer:
    """Returns a tokenizer of byte pairs that adds no special tokens. With `prefix`, a text begins
    with a space; with `fallback`, unknown characters become tokens of their bytes."""
    tokenizer = Tokenizer(_byte_pairs(pieces, fallback))
    before = [normalizers.Prepend(SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    for kinds, add in (
        ((UNKNOWN, CONTROL), tokenizer.add_special_tokens),
        ((USER_DEFINED,), tokenizer.add_tokens),
    ):
        add([AddedToken(x.piece, normalized=False) for x in pieces if x.type in kinds])
    return tokenizer


def _byte_pairs(pieces: Sequence[Piece], fallback: bool) -> models.BPE:
    ids = {piece.piece: n for n, piece in enumerate(pieces)}
    scores = {piece.piece: piece.score for piece in pieces if piece.type == NORMAL}
    ranked = []
    for piece, score in scores.items():
        for cut in range(1, len(piece)):
            if piece[:cut] in scores and piece[cut:] in scores:
                ranked.append((-score, ids[piece], cut, piece))
    merges = [(piece[:cut], piece[cut:]) for *_, cut, piece in sorted(ranked)]
    unknown = next((piece.piece for piece in pieces if piece.type == UNKNOWN), None)
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
