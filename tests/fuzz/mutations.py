"""Ways to damage an input, each a function of the sound bytes and a generator."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from typing import Any


def mutated(seed: bytes, rng: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                del data[place : place + rng.randint(1, 4)]
            case 1:
                data[place:place] = data[rng.randrange(len(data)) :][:5]
            case _:
                data[place] = rng.choice(b'\0\n\r\t",{}[]:\\\xff\xc3 ') or rng.randrange(256)
        data = data or bytearray(b"\n")
    return bytes(data)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """Damage a file, mostly in place: behind a wrong size nothing else is looked at."""
    if rng.random() < 0.2:
        return mutated(data, rng)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(rng.randrange(len(data)), len(data))  # behind a header, more often
        changed[place] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
    return bytes(changed)


HOSTILE: tuple[Any, ...] = (
    *(-1, 0, 1, 2**31, 2**63, 2**200, 1e308, -0.0, float("nan"), True, None, "", "x" * 5000),
    *("../../etc/passwd", "/etc/passwd", "seg/000000.vec.npy", "del/999999.npy", "\ud800", "\0"),
    *([], {}, [[]] * 50, {"name": "seg/000000.vec.npy"}, {"": {"": {}}}),
)


def mutated_manifest(data: bytes, rng: random.Random) -> bytes:
    """Change a manifest's values or bytes, and sign the result, so that it is read on."""
    body = data.partition(b"\n")[2]
    if rng.random() < 0.3:
        body = mutated(body, rng)
    else:
        values = json.loads(body)
        for _ in range(rng.randint(1, 3)):
            _change(values, rng)
        body = json.dumps(values).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _change(values: Any, rng: random.Random) -> None:
    """Give one place, somewhere inside, another value; or take it away, or double it."""
    while isinstance(values, (dict, list)) and values:
        key = rng.choice(list(values)) if isinstance(values, dict) else rng.randrange(len(values))
        inner = values[key]
        if not (isinstance(inner, (dict, list)) and inner) or rng.random() < 0.15:
            match rng.randrange(4):
                case 0:
                    del values[key]
                case 1 if isinstance(values, list):
                    values.append(copy.deepcopy(inner))
                case 2 if isinstance(inner, int):
                    values[key] = inner + rng.choice([-2, -1, 1, 2, 1000])
                case _:
                    values[key] = copy.deepcopy(rng.choice(HOSTILE))
            return
        values = inner
