"""What devices are called. Whether one is there, only torch can tell: `device` asks it."""

from __future__ import annotations

import re

from sbert_search.errors import ConfigError

_NAMES = re.compile(r"auto|mps|cuda|(cpu|cuda:\d\d?)(,(cpu|cuda:\d\d?))*")


def device_names(text: str) -> list[str]:
    """Read the name of a device, or several with commas between.

    Raises:
        ConfigError: It is none.
    """
    if not _NAMES.fullmatch(text):
        raise ConfigError(
            f"{text!r} is no device; use auto, cpu, cuda, cuda:N or mps, or several as cpu,cuda:0."
        )
    return text.split(",")
