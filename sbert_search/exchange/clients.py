"""Clients of other engines: packages that are not installed, and URLs of servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from sbert_search.base.progress import shown_url
from sbert_search.errors import ConfigError, install


@contextmanager
def needs(package: str, extra: str = "") -> Iterator[None]:
    """Turn a failed import inside the context into an error with the ``pip install`` to run.

    ``extra`` "": the package is in no extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        command = install(extra) if extra else f"python -m pip install {package}"
        raise ConfigError(f"The package {package} is not installed: {command}.") from error


def require_url(url: str) -> None:
    """Check that the host and the port of a URL can be read; a path of a file is not checked.

    A library that cannot read them may take a part of a password for the port, and print this part
    in its error.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        _ = parts.port  # checked when it is read
        if parts.hostname or parts.scheme not in ("http", "https", "tcp"):
            return
    raise ConfigError(
        f"--url {shown_url(url)}: the host or the port cannot be read; write a URL such as "
        "http://localhost:9200. In a user or a password, write %3A for a colon, %2F for a "
        "slash, %3F for ?, %23 for # and %40 for @."
    )


def cannot_be_opened(engine: str, url: str, error: Exception) -> ConfigError:
    """Return the error for an engine that cannot be opened, without user and password."""
    reason = str(error).replace(url, shown_url(url))
    return ConfigError(f"--url {shown_url(url)}: {engine} cannot be opened: {reason}")
