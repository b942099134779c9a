"""The tokenizer beside a model."""

from pathlib import Path

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import cached_file

from tape.files import read_object

PROBE = "It's 12345 of 6: don't  stop\n\n\tnow, Größe 漢字 ☃ x+=1"  # of all that tokenizers split


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Returns the tokenizer beside a model; refuses damaged files and classes that differ."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # damaged files raise anything
        for path in (folder / "tokenizer_config.json", folder / "tokenizer.json"):
            if path.is_file():
                read_object(path)
        raise ValueError(
            f"{folder} has no tokenizer that can be loaded ({type(error).__name__}: {error}): add "
            "the model's own tokenizer"
        ) from error
    if tokenizer.is_fast:
        check_tokens(tokenizer, folder)
    return tokenizer


def check_tokens(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Raises a ValueError if a tokenizer makes other tokens than the tokenizer.json of its folder
    or hub name: transformers builds some classes anew. Drops truncation and padding."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    if type(tokenizer) is PreTrainedTokenizerFast:  # reads the file as it is
        return
    file = cached_file(folder, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if file is None:
        return
    made = Tokenizer.from_file(file).encode(PROBE, add_special_tokens=False).ids
    if made != backend.encode(PROBE, add_special_tokens=False).ids:
        raise ValueError(
            f"{type(tokenizer).__name__}, the tokenizer_class of {folder}, makes other tokens than "
            f"{file}; where the file is right, set tokenizer_class to PreTrainedTokenizerFast in "
            "its tokenizer_config.json"
        )
