"""What lower code knows of the command line: names of devices, precisions and options.

The code that makes a message does not know which command runs. So the command states its options,
and messages name only these.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Literal

from sbert_search import errors
from sbert_search.errors import ConfigError

Precision = Literal["auto", "fp32", "bf16", "fp16", "int8", "fastest"]
EngineName = Literal["native", "onnx", "sentence-transformers"]

_NAMES = re.compile(r"auto|mps|cuda|(cpu|cuda:\d\d?)(,(cpu|cuda:\d\d?))*")


def device_names(text: str) -> list[str]:
    """Parse the name of a device, or several separated by commas."""
    if not isinstance(text, str) or not _NAMES.fullmatch(text):
        raise ConfigError(
            f"{text!r} is not a device; use auto, cpu, cuda, cuda:N, mps, or a list as cpu,cuda:0."
        )
    return text.split(",")


def offer_options(names: AbstractSet[str] | None) -> None:
    """Say which options the running command has, such as ``--on-error``; None: no command runs."""
    errors.offered = names


def worded(command: str, python: str) -> str:
    """Return ``command``, words for the command line, if a command runs; otherwise ``python``."""
    return python if errors.offered is None else command


def if_offered(option: str, remedy: str, otherwise: str = "") -> str:
    """Return ``remedy`` if the running command has the option, or none runs; else ``otherwise``."""
    return remedy if errors.offered is None or option in errors.offered else otherwise
