"""Parse device names without importing torch; `runtime.device` checks that a device exists."""

from __future__ import annotations

import re

from sbert_search.errors import ConfigError

_NAMES = re.compile(r"auto|mps|cuda|(cpu|cuda:\d\d?)(,(cpu|cuda:\d\d?))*")


def device_names(text: str) -> list[str]:
    """Parse the name of a device, or several separated by commas.

    Raises:
        ConfigError: The text is not a device name.
    """
    if not isinstance(text, str) or not _NAMES.fullmatch(text):
        raise ConfigError(
            f"{text!r} is not a device; use auto, cpu, cuda, cuda:N, mps, or a list as cpu,cuda:0."
        )
    return text.split(",")
