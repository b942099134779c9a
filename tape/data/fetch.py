"""Download of one file: its SHA-256 is checked, and an interrupted download is continued."""

from pathlib import Path

import httpx

from tape.core.files import sha256_of
from tape.core.progress import track

TIMEOUT = 60  # seconds without a byte
LOST = 416  # HTTP status: the server has no such range


def fetch(address: str, sha256: str, target: Path) -> Path:
    """Downloads a file to `target`, unless it is there. The part that has arrived is kept beside
    it under another name, and the next call continues from there.

    Raises:
        ValueError: if the file has another SHA-256; what has arrived is removed.
        OSError: if the server cannot be reached, or refuses.
    """
    part = target.with_name(f".{target.name}.part")
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _receive(address, part)
        except httpx.HTTPError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise OSError(f"{address} cannot be downloaded: {reason}") from error
        check(part, sha256, address)
        part.rename(target)
    return check(target, sha256, str(target))


def check(path: Path, sha256: str, name: str) -> Path:
    """Returns the path of a file; removes a file with another SHA-256 and raises a ValueError."""
    if (found := sha256_of(path)) != sha256:
        path.unlink()
        raise ValueError(f"{name} has SHA-256 {found}, not {sha256}: it is another version")
    return path


def _receive(address: str, part: Path) -> None:
    """Appends what is missing to a part, which is begun again if the server sends all of it."""
    there = part.stat().st_size if part.is_file() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
    how = {"headers": headers, "timeout": TIMEOUT, "follow_redirects": True}
    with httpx.stream("GET", address, **how) as answer:
        if there and answer.status_code == LOST:  # the part is complete, or of another file
            return
        answer.raise_for_status()
        if answer.status_code != httpx.codes.PARTIAL_CONTENT:
            there = 0
        size = int(answer.headers.get("Content-Length", 0)) + there
        bar = track(desc=part.name[1:-5], total=size or None, initial=there, unit="B", unit_scale=1)
        with bar, part.open("ab" if there else "wb") as file:
            for piece in answer.iter_raw():
                bar.update(file.write(piece))
