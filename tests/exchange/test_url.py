"""No message has the user or the password of a URL."""

from __future__ import annotations

import pytest

from sbert_search.base.progress import shown_url
from sbert_search.errors import ConfigError
from sbert_search.exchange.clients import cannot_be_opened, require_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:secret@host:9200/a", "http://host:9200/a"),
        ("https://me:sec/ret@host", "https://host"),
        ("http://me:sec@ret@host", "http://host"),
        ("http:/me:secret@host", "http:/host"),
        ("me:secret@host:9200", "host:9200"),
        ("http://host:9200", "http://host:9200"),
        ("/home/me@work/a:b/m.db", "/home/me@work/a:b/m.db"),
        ("m.db", "m.db"),
    ],
)
def test_a_url_is_shown_without_user_and_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    error = ValueError(f"Illegal uri: [{url}]")
    reason = f"url {shown}: Milvus cannot be opened: Illegal uri: [{shown}]"
    assert str(cannot_be_opened("Milvus", url, error)) == reason


@pytest.mark.parametrize(
    "url", ["http://me:secret/x@host:1", "http://me:secret@", "http:/me:secret@host", "tcp://h:x"]
)
def test_a_url_whose_host_or_port_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="the host or the port cannot be read") as caught:
        require_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://me:secret@host:9200", "http://[::1]:1", "unix:///run/m", "m.db", "folder/a:b"]
)
def test_other_urls_and_paths_are_taken(url: str) -> None:
    require_url(url)
