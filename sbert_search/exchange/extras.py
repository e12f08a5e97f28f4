"""Reporting that the client package of another search engine is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sbert_search.errors import ConfigError


@contextmanager
def needs(package: str, install: str) -> Iterator[None]:
    """Return a context that turns a failed import into an error with the pip command to run.

    Args:
        package: Name of the package that is imported inside the context.
        install: Requirement for ``pip install``, such as ``sbert-search[qdrant]``.

    Raises:
        ConfigError: The package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The package {package} is not installed; run `python -m pip install '{install}'`."
        ) from error
