"""The two schemes of token tags for entities: BIO (IOB2) and BILOU.

A tag is ``O`` (outside of every entity) or a prefix, ``-`` and the type of an entity. In both
schemes ``B`` begins an entity of several tokens and ``I`` continues it. In BIO, the token of an
entity of one token has the prefix ``B``. In BILOU it has the prefix ``U`` (unit), and the last
token of an entity of several tokens has the prefix ``L``.

Source: Ratinov & Roth 2009, Design challenges and misconceptions in named entity recognition,
section 4 (BILOU); Tjong Kim Sang & De Meulder 2003, CoNLL-2003 shared task, section 2.3 (F1 over
entities), with the reading of ``conlleval`` for tags that break the scheme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

Scheme = Literal["bio", "bilou"]

OUTSIDE = "O"
PREFIXES: dict[Scheme, str] = {"bio": "BI", "bilou": "BILU"}
_ONE: dict[Scheme, str] = {"bio": "B", "bilou": "U"}  # prefix of an entity of one token
_LAST: dict[Scheme, str] = {"bio": "I", "bilou": "L"}  # of the last token, if an entity has several


class Entity(NamedTuple):
    """One entity of a sequence: its type, its first token, and the token after its last."""

    kind: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Return the prefix and the type of a tag: ``("B", "person")``, or ``("O", "")``."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    prefix, dash, kind = tag.partition("-")
    if not dash or not kind or prefix not in PREFIXES["bilou"] or len(prefix) != 1:
        raise ValueError(f"{tag!r} is not O, B-TYPE, I-TYPE, L-TYPE or U-TYPE")
    return prefix, kind


def tag_names(kinds: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return all tags of a scheme for some types of entities: ``O`` first, then type by type."""
    return OUTSIDE, *(f"{p}-{kind}" for kind in sorted(set(kinds)) for p in PREFIXES[scheme])


def detect_scheme(tags: Iterable[str]) -> Scheme:
    """Return the scheme of tags: BILOU if any tag has the prefix ``L`` or ``U``, otherwise BIO."""
    return "bilou" if any(tag[:2] in ("L-", "U-") for tag in tags) else "bio"


def may_follow(previous: str | None, tag: str | None, scheme: Scheme) -> bool:
    """Whether a tag may come directly after another; None: the start or end of the sequence."""
    before, kind_before = split_tag(OUTSIDE if previous is None else previous)
    prefix, kind = split_tag(OUTSIDE if tag is None else tag)
    goes_on = kind == kind_before and before in ("B", "I")
    if scheme == "bio":
        return prefix in ("O", "B") or (prefix == "I" and goes_on)
    return prefix in ("I", "L") and goes_on if before in ("B", "I") else prefix in ("O", "B", "U")


def first_fault(tags: Sequence[str], scheme: Scheme) -> int | None:
    """Return the index of the first tag that its neighbours do not allow, or None.

    In BILOU, if the sequence ends inside an entity, the fault is the last tag of the sequence.
    """
    for index, tag in enumerate(tags):
        if not may_follow(tags[index - 1] if index else None, tag, scheme):
            return index
    open_at_end = bool(tags) and not may_follow(tags[-1], None, scheme)
    return len(tags) - 1 if open_at_end else None


def entities(tags: Sequence[str], scheme: Scheme, *, strict: bool = False) -> list[Entity]:
    """Return the entities that a sequence of tags of either scheme denotes, in order.

    With ``strict``, only entities that follow ``scheme`` count. Otherwise, as ``conlleval`` reads
    tags, an ``I`` or ``L`` with no entity of its type to continue begins an entity, and an entity
    ends where the next one begins. A ValueError says that a tag belongs to neither scheme or, if
    ``strict``, not to ``scheme``.
    """
    found: list[Entity] = []
    open_kind, start, closed = "", 0, False
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = split_tag(tag)
        if strict and prefix != OUTSIDE and prefix not in PREFIXES[scheme]:
            raise ValueError(f"{tag!r} is not a tag of {scheme.upper()}")
        goes_on = prefix in ("I", "L") and kind == open_kind and not closed
        if open_kind and not goes_on:
            if not strict or scheme == "bio" or closed:
                found.append(Entity(open_kind, start, index))
            open_kind = ""
        if not goes_on and prefix != OUTSIDE and not (strict and prefix in ("I", "L")):
            open_kind, start = kind, index
        closed = bool(open_kind) and prefix in ("L", "U")
    return found


def tags_of(found: Iterable[Entity], length: int, scheme: Scheme) -> tuple[str, ...]:
    """Return the tags of a sequence with some entities, which do not overlap."""
    tags = [OUTSIDE] * length
    for kind, start, end in found:
        tags[start:end] = [f"I-{kind}"] * (end - start)
        tags[end - 1] = f"{_LAST[scheme]}-{kind}"
        tags[start] = f"{_ONE[scheme] if end - start == 1 else 'B'}-{kind}"
    return tuple(tags)


def convert(tags: Sequence[str], scheme: Scheme, to: Scheme) -> tuple[str, ...]:
    """Return the tags of the scheme ``to`` for the same entities; faulty tags are repaired."""
    return tags_of(entities(tags, scheme), len(tags), to)
