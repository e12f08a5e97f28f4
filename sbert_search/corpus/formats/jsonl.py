"""Read JSON lines files: one JSON object per line, in UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from sbert_search.corpus.formats.limits import NO_BUDGET, RowLimit
from sbert_search.corpus.formats.lines import read_filled_lines
from sbert_search.corpus.formats.rows import BadRow, RawRow, Reject, decode


def read_jsonl(
    stream: BinaryIO, shown: str, *, skip: int = 0, limit: RowLimit = NO_BUDGET
) -> Iterator[RawRow | Reject]:
    """Yield one row per line; blank lines are skipped.

    Args:
        stream: Bytes of the file, decompressed.
        shown: Name of the file in messages.
        skip: Number of rows to skip without parsing them.
        limit: Maximum size of a row.
    """
    for number, data, problem in read_filled_lines(stream, skip=skip, limit=limit):
        source = f"{shown}:{number}"
        if problem:
            yield Reject(source, problem)
            continue
        try:
            limit.check_json(data)
            yield RawRow(source, number, parse_object(data))
        except BadRow as bad:
            yield bad.at(source)


def parse_object(data: bytes) -> dict[str, object]:
    """Parse one JSON object strictly: UTF-8, no NaN or Infinity, limited nesting.

    Raises:
        BadRow: The bytes are not such an object. For broken JSON the reason names the column.
    """
    try:
        value = _DECODER.decode(decode(data))
    except json.JSONDecodeError as error:
        near = error.doc[max(0, error.pos - 20) : error.pos + 20]
        raise BadRow(f"broken JSON at column {error.colno}: {error.msg}", near) from None
    except RecursionError:
        raise BadRow("JSON nested too deep", data) from None
    except ValueError:  # Python refuses to parse an integer of more than 4,300 digits
        raise BadRow("broken JSON: an integer is too long; write it as text", data) from None
    if not isinstance(value, dict):
        raise BadRow("the row is not a JSON object", value)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadRow(f"{name} is not a JSON value; write null")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
