"""Random literals of SQL, and the values that make a difference between them."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta, timezone

WIDE = [2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**60, 2**62 + 1, 2**63 - 1, 2**63 - 512]
INTEGERS = [0, 1, -1, 2, 5, 7, 16777216, 16777217, *WIDE, *(-n for n in WIDE), -(2**63)]
FLOATS = [0.0, -0.0, 0.5, -0.5, 1.0, 1.5, 2.5, 5.0, 7.0, 1e6, 1e-300, -1e300, 5e-324, 1.7e308]
FLOATS += [float(2**53), float(2**53 + 2), -float(2**53), 2.0**63, -(2.0**63), 2.0**62, 0.1]
TEXTS = [
    "",
    "a",
    "ab",
    "abc",
    "A",
    "aB",
    "a%b",
    "a_b",
    "a\\b",
    "\\",
    "%",
    "_",
    "it's",
    'q"q',
    "a\nb",
]
TEXTS += [
    "é",
    "É",
    "éa",
    "ß",
    "İ",
    "Σσς",
    "日本",
    "🙂",
    "a🙂b",
    " a",
    "a ",
    "100%",
    "NULL",
    "--",
    "2024-01-01",
]
PATTERN_PARTS = [
    "%",
    "%",
    "_",
    "a",
    "b",
    "B",
    "\\%",
    "\\_",
    "\\\\",
    "é",
    "É",
    "日",
    "🙂",
    "'",
    "\\a",
    ".",
]
DATES = [date(2024, 1, 1) + timedelta(n) for n in range(6)] + [date(1, 1, 1), date(9999, 12, 31)]
TIMES = [datetime(2024, 1, 1, 12, tzinfo=UTC) + timedelta(hours=7 * n) for n in range(6)]
TIMES += [TIMES[0] + timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC)]
TIMES += [datetime(2024, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]


def number(rng: random.Random) -> str:
    """Write a number in one of the ways SQL has."""
    match rng.randrange(9):
        case 0:
            return f"{rng.choice(INTEGERS)}.0"
        case 1:
            return f"{rng.choice(INTEGERS)}.5"
        case 2:
            return repr(rng.choice(FLOATS))
        case 3:
            exponent = rng.choice([0, 1, 2, -2, 15, 16, 18, 19, 300, 400, -400])
            return f"{rng.choice([1, 5, -2, 2.5, 9.007199254740993])}{rng.choice('eE')}{exponent}"
        case 4:
            return str(
                rng.choice([2**63, 2**63 + 1, -(2**63) - 1, 2**64, 10**25, 10**310, -(10**310)])
            )
        case 5:
            return rng.choice(["007", ".5", "5.", "-.5", "- 1", "0.0", "-0.0", "-0", "1" * 5000])
        case _:
            return str(rng.choice(INTEGERS))


def time(rng: random.Random) -> tuple[str, str]:
    """Write a time, in some zone or without; sqlite's is in UTC."""
    moment = rng.choice(TIMES)
    hours = rng.choice([0, 2, -5]) if 1 < moment.year < 9999 else 0
    zoned = moment.astimezone(timezone(timedelta(hours=hours)))
    text = zoned.isoformat(sep=rng.choice("T "))
    if hours == 0:
        text = text.removesuffix("+00:00") + rng.choice(["", "Z", "+00:00"])
    if hours == 0 and moment.hour == moment.second == 0:
        text = rng.choice([text, moment.date().isoformat()])
    return quote(text), quote(stored_time(moment))


def stored_time(moment: datetime) -> str:
    """Write a time so that texts sort as times do."""
    return moment.isoformat(timespec="microseconds")


def quote(text: str) -> str:
    """Write a text as a literal."""
    return "'" + text.replace("'", "''") + "'"
