"""Damaged filters: characters and words changed, doubled, moved, repeated or nested."""

from __future__ import annotations

import random
import re

from tests.fuzz.mutations import mutated
from tests.index.random_filters import REFUSED, FilterGenerator

_WORDS = r"""AND OR NOT IN BETWEEN LIKE ILIKE IS NULL TRUE ANY ALL SELECT FROM COLLATE SYMMETRIC
( ) , ' " '' ; -- /* */ {# {{ :: . .. * % @ = == <=> ! ~ || && -> : ? $1 \ ` [ ] 0x 1e ² 1e999 7 i s
-9223372036854775809 1_0 0.5 x'00' N'a' $$a$$ %s {0} é 🙂 CAST( CASE EXISTS"""
WORDS = [
    *_WORDS.split(),
    *("DISTINCT FROM", "ESCAPE '!'", "DATE '2024-01-01'"),
    *("\ud800", "\udcff", "\0", "\u2028", "\x85", "\ufeff", "\r"),
]


def mutated_filter(rng: random.Random) -> str:
    """Damage a sound filter, or write one that is very long or very deep."""
    where = FilterGenerator(rng).draw().ours if rng.random() < 0.9 else rng.choice(REFUSED)
    match rng.randrange(20):
        case 0:
            return repeated(where, rng)
        case n if n < 4:
            return mutated(where.encode(), rng).decode("utf-8", "surrogateescape")
        case n if n < 8:
            return _characters(where, rng)
        case _:
            return _words(where, rng)


def repeated(where: str, rng: random.Random) -> str:
    """Make a filter long or deep: up to somewhat more than what is taken."""
    times = rng.choice([2, 10, 40, 60, 200, 1000, 20_000])
    part = rng.choice([*WORDS, "(", "NOT ", "s LIKE ", f"({where}) AND ", f"NOT ({where}) OR "])
    long = (part * times)[: rng.choice([5_000, 20_000, 100_000, 100_001])]
    match rng.randrange(5):
        case 0:
            return long + where
        case 1:
            return where + long
        case 2:
            return "(" * times + where + ")" * times
        case 3:
            return "s LIKE '" + long.replace("'", "") + "'"
        case _:
            return "i IN (" + "1," * times + "2)"


def _characters(where: str, rng: random.Random) -> str:
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(where) + 1)
        new = chr(rng.choice([rng.randrange(128), rng.randrange(0x3100), rng.randrange(0x110000)]))
        where = where[:place] + new + where[place + rng.randrange(3) :]
    return where


def _words(where: str, rng: random.Random) -> str:
    words = re.findall(r"\w+|'[^']*'|[<>=!]+|\s+|.", where)
    for _ in range(rng.choice([1, 1, 2, 4])):
        place = rng.randrange(len(words) + 1)
        other = rng.randrange(len(words) + 1)
        match rng.randrange(8):
            case 0:
                del words[place : place + rng.randint(1, 3)]
            case 1:
                words[place:place] = words[other:][:4]
            case 2:
                words.insert(place, f" {rng.choice(WORDS)} ")
            case _:
                alike = [word for word in words if _kind(word) == _kind("".join(words[place:]))]
                words[place : place + 1] = [rng.choice(alike)] if alike else []
    return "".join(words)


def _kind(word: str) -> int:
    kinds = (str.isalpha, str.isdigit, str.isspace, "'".__eq__, str.isascii)
    return next((i for i, test in enumerate(kinds) if test(word[:1])), -1)
