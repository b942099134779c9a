"""Files in a Debian package: an `ar` archive whose member data.tar holds them (deb(5))."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

MAGIC = b"!<arch>\n"
HEADER = 60  # bytes: name (16), times and owners (32), size (10), end (2)


def files_of(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the names and contents of the regular files in a .deb, in the order of the archive.
    Raises a ValueError if it is no such archive."""
    with package.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{package} is no Debian package")
        while header := file.read(HEADER):
            size = int(header[48:58])
            if header.startswith(b"data.tar"):
                with tarfile.open(fileobj=io.BytesIO(file.read(size))) as archive:
                    for member in archive:
                        if member.isreg():
                            content = archive.extractfile(member).read()
                            yield member.name.removeprefix("./"), content
                return
            file.seek(size + size % 2, io.SEEK_CUR)  # members begin at even places
    raise ValueError(f"{package} has no data.tar")
