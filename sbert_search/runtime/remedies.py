"""Options of the command line that messages name as remedies, such as ``--on-error skip``.

The code that makes a message does not know which command runs. So the command states its options
with `offer_options`, and messages name only these options.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

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
