"""Refuse an output path that would overwrite an input, even through a link or another spelling."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sbert_search.errors import ConfigError


def same_file(path: Path, others: Iterable[Path]) -> Path | None:
    """Return the first of ``others`` that names the same file as ``path``, or None.

    The names may differ: another spelling, a symbolic link or a hard link. A file that does not
    exist is the same as no other.
    """
    if (own := _identity(path)) is None:
        return None
    return next((other for other in others if _identity(other) == own), None)


def require_apart(output: Path, inputs: Iterable[Path], option: str = "The output") -> None:
    """Refuse to write over an input, or into a folder that is an input.

    Args:
        output: A file or folder to write; it need not exist.
        inputs: Files and folders that are read. A folder stands for all its files; if only some of
            them are read, pass these files instead.
        option: Name of the output in the message.

    Raises:
        ConfigError: The output is an input, or lies in an input folder.
    """
    inputs = list(inputs)
    temporary = Path(f"{output}.tmp")  # `files.replacing` writes this file first
    for written in (output, temporary):
        if (input_path := same_file(written, inputs)) is not None:
            named = f" ({input_path})" if str(input_path) != str(written) else ""
            raise ConfigError(
                f"{option} would overwrite {written}{named}, which is read. Name another file."
            )
    folders = [path for path in inputs if path.is_dir()]
    inside = Path(os.path.realpath(output.parent))
    for above in (inside, *inside.parents) if folders else ():
        if (input_path := same_file(above, folders)) is not None:
            raise ConfigError(
                f"{option}, {output}, lies in {input_path}, which is read. Name a path outside."
            )


def require_possible_output(output: Path, option: str = "The output") -> None:
    """Refuse an output path where no file can be written, before the work starts.

    Raises:
        ConfigError: The output is a folder, or its parent folder does not exist.
    """
    if output.is_dir():
        raise ConfigError(f"{option}: {output} is a folder. Name a file.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{option}: {output.parent} is not a folder. Create it first.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
