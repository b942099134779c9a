"""The RedPajama sample: eleven JSON lines files, of which only the text is used."""

from __future__ import annotations

import logging
from pathlib import Path

from tape.data.corpora import Corpus, TextCorpus
from tape.data.readers import from_hub
from tape.validation import check_fraction, check_path

# By name: its loading script is not run by `datasets`.
HUB = "togethercomputer/RedPajama-Data-1T-Sample"
CRAWLS = ("cc_2019-30", "cc_2020-05", "cc_2021-04", "cc_2022-05", "cc_2023-06")
SOURCES = ("arxiv", "book", "c4", *CRAWLS, "github", "stackexchange", "wikipedia")
FILES = tuple(f"{source}_sample.jsonl" for source in SOURCES)
log = logging.getLogger(__name__)


class RedPajamaCorpus(TextCorpus):
    """RedPajama-Data-1T-Sample (Together Computer 2023): about a billion tokens from the sources of
    Llama's training data.

    Args:
        dir: local folder with some or all of the files under their official names; None: the hub.
        validation_fraction: fraction of documents, chosen by content, for validation.

    Raises:
        FileNotFoundError: if the folder has none of the files, or the hub cannot provide one.
    """

    remedy = "give more text, or choose the validation text with data.validation_fraction"

    def __init__(
        self,
        dir: str | Path | None = None,
        validation_fraction: float = 0.01,
        name: str = "redpajama",
        documents: str | None = None,
    ):
        check_fraction("data.validation_fraction", validation_fraction)
        Corpus.__init__(self, name, documents)
        self.field, self.held_out, self.validation_fraction = "text", [], validation_fraction
        if dir is None:
            log.info("downloading %s once, about 5 GB", HUB)
            self.paths = from_hub(HUB, [*FILES])
        else:
            self.paths = _in_folder(check_path("data.dir", dir))

    def rule(self) -> str:
        return f"redpajama {self.validation_fraction}"


def _in_folder(folder: Path) -> list[Path]:
    there = [folder / name for name in FILES if (folder / name).is_file()]
    if not there:
        raise FileNotFoundError(
            f"data.dir={folder} has none of {', '.join(FILES)}; they are on "
            f"https://huggingface.co/datasets/{HUB}"
        )
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        log.warning("%s has %s of %s files; missing: %s", folder, len(there), len(FILES), missing)
    return there
