"""Write a map into a folder: the page, the summary and the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, cast

import pyarrow.parquet as pq

from sbert_search.base.files import replace_file, replacing
from sbert_search.base.folders import require_apart
from sbert_search.errors import ConfigError
from sbert_search.lab.map.page import write_page
from sbert_search.lab.map.record import CorpusMap
from sbert_search.lab.map.table import summary, to_table

PAGE, SUMMARY, TABLE = "map.html", "map.json", "map.parquet"


def require_folder(folder: Path, index: Path, option: str = "folder") -> None:
    """Check, before the work starts, that a map can be written into a folder.

    Raises:
        ConfigError: The folder is a file, or belongs to the index.
    """
    for above in (folder, *folder.parents):
        if above.exists() and not above.is_dir():
            raise ConfigError(f"{option}: {above} is a file. Name a folder.")
    require_apart(folder / PAGE, [index], option)


def write_map(drawn: CorpusMap, folder: str | Path, *, parquet: bool = False) -> list[Path]:
    """Write the page ``map.html`` and the summary ``map.json`` of a map into a folder.

    Args:
        drawn: The map.
        folder: The folder; it is made if it does not exist. Existing files of a map are replaced.
        parquet: Also write ``map.parquet``, with a row for each document.

    Returns:
        Paths of the files written.

    Raises:
        ConfigError: The folder is a file, or belongs to the index.
        OSError: The disk failed while a file was written; an older file of that name is unchanged.
    """
    folder = Path(folder)
    require_folder(folder, Path(drawn.index))
    folder.mkdir(parents=True, exist_ok=True)
    page, lines, table = folder / PAGE, folder / SUMMARY, folder / TABLE
    with replacing(page) as file:
        write_page(drawn, file)
    replace_file(lines, json.dumps(summary(drawn), indent=1).encode() + b"\n")
    if not parquet:
        return [page, lines]
    with replacing(table) as file:
        pq.write_table(to_table(drawn), cast(IO[bytes], file))
    return [page, lines, table]
