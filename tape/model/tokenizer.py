"""The tokenizer beside a model: of its tokenizer.json, or of SentencePiece's tokenizer.model."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

from tape.core.files import read_object
from tape.core.validation import check_no_gguf
from tape.model.sentencepiece import from_sentencepiece

FILE, SETTINGS, PIECES = "tokenizer.json", "tokenizer_config.json", "tokenizer.model"
ADDS = ("add_bos_token", "add_eos_token")
BESIDE = (SETTINGS, "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
# What tokenizers treat in their own ways: spaces before a text and a line, tabs, line ends, digits,
# contractions, accents that are composed or not, other scripts, emoji, names of special tokens.
PROBE = (
    "    return x + 1\n\tif y:\r\n\n\n        don't  stop, It's 12345 of 6.50 % x+=1;\u00a0Größe",
    " e\u0301 ﬁ 漢字かな हिन्दी العربية ☃ 👩\u200d🚀 <|x|> </s>  \t end  \n ",
    "\t\tx",
    "   ",
    "a",
)


def read_tokenizer(source: str | Path) -> PreTrainedTokenizerFast:
    """Returns the tokenizer in a folder, or of a name on the hub if `source` is a string, without
    truncation and padding.

    Its tokens are those of tokenizer.json, whatever class tokenizer_config.json names: transformers
    builds some classes anew, with other tokens. BOS and EOS are added as the two settings of
    tokenizer_config.json say or, without them, as tokenizer.json does. If there is only a
    tokenizer.model, its tokens are those of SentencePiece, and BOS is added by default.

    Raises:
        ValueError: if there is no tokenizer, or it makes other tokens than its file.
    """
    how = {"local_files_only": isinstance(source, Path), "trust_remote_code": False}
    check_no_gguf(source)
    try:
        file, pieces, settings = (_file(source, name) for name in (FILE, PIECES, SETTINGS))
        given = read_object(settings) if settings else {}
        if file is not None:
            tokenizer = _of_file(source, file, how)
        elif pieces is not None:
            tokenizer, given = _of_pieces(source, pieces, given)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, **how)
    except Exception as error:  # damaged files raise anything
        if type(error) is ValueError and str(error).startswith(str(source)):
            raise
        reason, path = f"{type(error).__name__}: {' '.join(str(error).split())}", Path(source, FILE)
        if path.is_file():
            raise ValueError(f"{path} is damaged ({reason}): create it again") from error
        raise ValueError(
            f"{source} is neither a folder with a tokenizer nor the name of one on the hub "
            f"({reason}): add the model's own {FILE}"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(f"{source} has no fast tokenizer: add the model's {FILE}")
    _whole(tokenizer.backend_tokenizer)
    _add_as_told(tokenizer, given)
    return tokenizer


def _file(source: str | Path, name: str) -> Path | None:
    how = {"local_files_only": isinstance(source, Path)}
    found = cached_file(source, name, _raise_exceptions_for_missing_entries=False, **how)
    return found and Path(found)


def _whole(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _of_file(source: str | Path, file: Path, how: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(source, **how)
    if tokenizer.eos_token is None:  # then those that its class has by default
        known = tokenizer.get_vocab()
        usual = AutoTokenizer.from_pretrained(source, **how).special_tokens_map
        usual = {name: x for name, x in usual.items() if isinstance(x, str) and x in known}
        tokenizer = PreTrainedTokenizerFast.from_pretrained(source, **how | usual)
    made, backend = map(_whole, (Tokenizer.from_file(str(file)), tokenizer.backend_tokenizer))
    own = made.get_added_tokens_decoder()
    others = {n: x for n, x in backend.get_added_tokens_decoder().items() if n not in own}
    in_text = {n: x for n, x in others.items() if _is_of_text(made, n)}
    if any(token.special for token in in_text.values()):
        whole = _whole(Tokenizer.from_file(str(file)))
        whole.add_tokens([x for n, x in others.items() if not (x.special and n in in_text)])
        whole.encode_special_tokens = backend.encode_special_tokens
        tokenizer._tokenizer = backend = whole
    names = [token.content for token in (own | in_text).values()]
    for text in (*PROBE, *(f"a{name} b {name}c" for name in names)):
        if _ids(made, text) != _ids(backend, text):
            raise ValueError(
                f"{source}: {SETTINGS} or a file beside it changes the tokens of {file}, as in "
                f"{text!r:.40}: remove added_tokens_decoder, split_special_tokens and "
                f"fix_mistral_regex from {SETTINGS}"
            )
    return tokenizer


def _is_of_text(tokenizer: Tokenizer, number: int) -> bool:
    """Returns whether plain text has a token, given by its id. If it has a role, such as padding,
    transformers makes it special: it would be cut out of words, and left out of answers."""
    name, model, split = tokenizer.id_to_token(number), tokenizer.model, tokenizer.pre_tokenizer
    if name is None or model.token_to_id(name) is None:
        return False
    words = 1 if split is None else len(split.pre_tokenize_str(name))
    return words == 1 and [token.id for token in model.tokenize(name)] == [number]


def _ids(tokenizer: Tokenizer, text: str) -> list[int] | str:
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except Exception as error:  # which tokenizers raises for a text without a token
        return str(error)


def _of_pieces(
    source: str | Path, pieces: Path, given: dict[str, Any]
) -> tuple[PreTrainedTokenizerFast, dict[str, Any]]:
    """Returns the tokenizer of a tokenizer.model with the settings beside it, and these settings
    with their defaults."""
    made, named = from_sentencepiece(pieces, PROBE)
    with tempfile.TemporaryDirectory() as work:
        made.save(str(Path(work, FILE)))
        for name in BESIDE:
            if (path := _file(source, name)) is not None:
                shutil.copy(path, work)
        named = {name: token for name, token in named.items() if given.get(name) is None}
        tokenizer = PreTrainedTokenizerFast.from_pretrained(work, **named)
    tokenizer.name_or_path = str(source)
    return tokenizer, {"add_bos_token": tokenizer.bos_token is not None} | given


def _add_as_told(tokenizer: PreTrainedTokenizerBase, given: dict[str, Any]) -> None:
    """Adds BOS and EOS to texts, or does not, where `given` says so: transformers follows the
    template in tokenizer.json. Raises a ValueError for a template with other tokens."""
    told = {name: given[name] for name in ADDS if isinstance(given.get(name), bool)}
    if not told:
        return
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    starts = next(n for n in range(len(whole)) if whole[n : n + len(bare)] == bare)
    before, after = whole[:starts], whole[starts + len(bare) :]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    found = {"add_bos_token": before == [bos], "add_eos_token": after == [eos]}
    if told.items() <= found.items():
        return
    if before not in ([], [bos]) or after not in ([], [eos]):
        raise ValueError(f"{tokenizer.name_or_path}: {told} in {SETTINGS} contradict {FILE}")
    for name, value in (found | told).items():
        setattr(tokenizer, name, value)
