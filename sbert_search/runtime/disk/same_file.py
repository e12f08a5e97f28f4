"""Whether what is about to be written is something that is read, under whatever name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sbert_search.errors import ConfigError


def same_file(path: Path, others: Iterable[Path]) -> Path | None:
    """Return the first of some files that is this file: by another spelling, a link or a hard link.

    Files that are not there are none.
    """
    if (own := _identity(path)) is None:
        return None
    return next((other for other in others if _identity(other) == own), None)


def require_apart(output: Path, inputs: Iterable[Path], option: str = "The output") -> None:
    """Refuse to write over an input, or into a folder that is one.

    Args:
        output: A file or folder to write; absent or not.
        inputs: Files and folders that are read. Of a folder all belongs to it; where only some of
            its files do, name these.
        option: How the message calls the output.

    Raises:
        ConfigError: It is one of them, or lies in one of them.
    """
    inputs = list(inputs)
    beside = Path(f"{output}.tmp")  # what `files.replacing` writes first
    for written in (output, beside):
        if (read := same_file(written, inputs)) is not None:
            named = f" ({read})" if str(read) != str(written) else ""
            raise ConfigError(
                f"{option} would overwrite {written}{named}, which is read. Name another file."
            )
    folders = [path for path in inputs if path.is_dir()]
    inside = Path(os.path.realpath(output.parent))
    for above in (inside, *inside.parents) if folders else ():
        if (read := same_file(above, folders)) is not None:
            raise ConfigError(f"{option}, {output}, lies in {read}, which is read. Name another.")


def require_file_place(output: Path, option: str = "The output") -> None:
    """Refuse a name under which no file can be written, before any work is done for it.

    Raises:
        ConfigError: It is a folder, or the folder that it would lie in is not there.
    """
    if output.is_dir():
        raise ConfigError(f"{option}: {output} is a folder. Name a file.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{option}: {output.parent} is no folder. Make it first.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
