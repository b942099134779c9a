"""Where the files of settings are, and which ones there are, without importing Hydra."""

from importlib.metadata import entry_points
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
# In a checkout beside the package; setuptools installs it inside.
CONFIG = next(f for f in (PACKAGE / "config", PACKAGE.parent / "config") if f.is_dir())


def files_of(group: str) -> set[str]:
    """Returns the names of a group that have a file."""
    return {path.stem for path in (CONFIG / group).glob("*.yaml")}


def added_encodings() -> set[str]:
    """Returns the names of encodings of other packages: their entry points `tape.encodings`."""
    return entry_points(group="tape.encodings").names
