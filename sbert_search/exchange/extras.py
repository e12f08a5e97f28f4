"""The error if the client of another engine is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sbert_search.errors import ConfigError


@contextmanager
def needs(package: str, install: str) -> Iterator[None]:
    """Name the package to install if an import in this block fails.

    Args:
        package: The package that is imported.
        install: What pip installs.

    Raises:
        ConfigError: The package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The package {package} is not installed; run `python -m pip install '{install}'`."
        ) from error
