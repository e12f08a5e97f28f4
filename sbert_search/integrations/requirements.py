"""The error of an adapter whose framework is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sbert_search.errors import install


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a failed import in this block into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"sbert_search.integrations.{name} needs the package {error.name}: {install(name)}"
        ) from error
