"""Regular expressions of a tokenizer that may take for ever.

The library that runs them goes back and tries again, and has no limit of time. A group that is
repeated and holds something repeated, such as ``(a+)+``, can be matched in exponentially many ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from sbert_search.errors import ModelError

_PART = re.compile(
    r"""
    (?P<skip> \\[pPxu]\{[^}]*\} | \\. | \[(?:\\.|\[:\^?\w+:\]|[^\]\\])+\] )
    | (?P<open> \((?P<atomic>\?>)? )
    | (?P<close> \) )
    | (?P<repeat> (?: [*+] | \{\d*,\d*\} ) (?P<mode>[+?]?) )
    """,
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with a repeated group that holds something repeated.

    Raises:
        ModelError: Naming the expression.
    """
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for pattern in _patterns(json.loads(part.__getstate__())):
                if repeats_repeats(pattern):
                    raise ModelError(
                        f"The tokenizer splits texts by the expression {pattern[:80]}, which "
                        "repeats a group that holds a repetition and may take for ever. "
                        "Write it in tokenizer.json without the inner repetition."
                    )


def repeats_repeats(pattern: str) -> bool:
    """Tell whether a group that holds an unbounded repetition is itself repeated without bound.

    Possessive repetitions and atomic groups give nothing back, so they are no danger.
    """
    inside, atomic = [False], [False]  # of each open group: holds a repetition; gives nothing back
    closed, end = False, 0  # whether the group that ended here holds a repetition; where it ended
    for part in _PART.finditer(pattern):
        ended = closed and part.start() == end
        closed, end = False, part.end()
        if part["open"]:
            inside.append(False)
            atomic.append(part["atomic"] is not None)
        elif part["close"] and len(inside) > 1:
            holds, keeps = inside.pop(), atomic.pop()
            closed = holds and not keeps
            inside[-1] |= closed
        elif part["repeat"] and not re.fullmatch(r"\{\d*,\d+\}.?", part["repeat"]):
            if ended and part["mode"] != "+":
                return True
            inside[-1] |= part["mode"] != "+"
    return False


def _patterns(value: Any) -> Iterator[str]:
    """Find every ``{"Regex": ...}`` in the settings of a normaliser or splitter."""
    if isinstance(value, dict):
        if isinstance(found := value.get("Regex"), str):
            yield found
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _patterns(part)
