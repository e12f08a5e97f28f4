"""Read the settings of a tokenizer, and find regular expressions of exponential time.

The library that matches the expressions uses backtracking and has no time limit. A repeated group
that contains a repetition, such as ``(a+)+``, can match a text in exponentially many ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from sbert_search.errors import ModelError

SETTINGS = "tokenizer_config.json"


def read_settings(folder: Path) -> dict[str, object]:
    """Read the settings in the folder of a tokenizer; {} if there is no file with settings.

    Raises:
        ModelError: The file cannot be read, or does not hold a JSON object.
    """
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON: {error}. Repair the file, or copy it again."
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path} holds no JSON object. Repair the file, or copy it again.")
    return settings


_PART = re.compile(  # a group border or a repetition; or an escape or character class, to skip
    r"""
    (?P<skip> \\[pPxu]\{[^}]*\} | \\. | \[(?:\\.|\[:\^?\w+:\]|[^\]\\])+\] )
    | (?P<open> \((?P<atomic>\?>)? )
    | (?P<close> \) )
    | (?P<repeat> (?: [*+] | \{\d*,\d*\} ) (?P<mode>[+?]?) )
    """,
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer uses an expression for which `repeats_repeats` is true.

    Raises:
        ModelError: The tokenizer uses such an expression; the message names the expression.
    """
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for pattern in _patterns(json.loads(part.__getstate__())):
                if repeats_repeats(pattern):
                    raise ModelError(
                        f"The tokenizer uses the expression {pattern[:80]}, which repeats a group "
                        "that contains a repetition; matching a text may take for ever. "
                        "Write it in tokenizer.json without the inner repetition."
                    )


def repeats_repeats(pattern: str) -> bool:
    """Whether a group that contains an unbounded repetition is repeated without bound.

    Possessive repetitions and atomic groups do not backtrack, so they are safe.
    """
    # The whole expression counts as the outermost group. For each open group, outermost first:
    # whether the group contains an unbounded repetition that can backtrack, and whether the group
    # is atomic.
    repeats, atomic = [False], [False]
    # For the previous match of `_PART`: whether the match closed a group that contains such a
    # repetition and is not atomic, and where the match ends.
    closed_repeats, end = False, 0
    for part in _PART.finditer(pattern):
        follows = closed_repeats and part.start() == end
        closed_repeats, end = False, part.end()
        if part["open"]:
            repeats.append(False)
            atomic.append(part["atomic"] is not None)
        elif part["close"] and len(repeats) > 1:
            group_repeats, is_atomic = repeats.pop(), atomic.pop()
            closed_repeats = group_repeats and not is_atomic
            repeats[-1] |= closed_repeats
        elif part["repeat"] and not re.fullmatch(r"\{\d*,\d+\}.?", part["repeat"]):
            if follows and part["mode"] != "+":
                return True
            repeats[-1] |= part["mode"] != "+"
    return False


def _patterns(value: object) -> Iterator[str]:
    """Yield every expression in the JSON settings of a normaliser or pre-tokenizer."""
    if isinstance(value, dict):
        if isinstance(pattern := value.get("Regex"), str):
            yield pattern
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _patterns(part)
