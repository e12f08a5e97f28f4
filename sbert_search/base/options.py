"""What lower code knows of the command line: device names, and options named as remedies.

The code that makes a message does not know which command runs. So the command states its options
with `offer_options`, and messages name only these options.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet

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


_offered: AbstractSet[str] | None = None  # None: no command runs


def offer_options(names: AbstractSet[str] | None) -> None:
    """Say which options the running command has, such as ``--on-error``; None: no command runs."""
    global _offered
    _offered = names


def if_offered(option: str, remedy: str, otherwise: str = "") -> str:
    """Choose between two remedies.

    Args:
        option: An option that the remedy names, such as ``--on-error``.
        remedy: The remedy if the running command has the option, or no command runs.
        otherwise: The remedy if the running command lacks the option.
    """
    return remedy if _offered is None or option in _offered else otherwise
