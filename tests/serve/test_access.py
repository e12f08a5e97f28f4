"""Tokens and addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.cli.serve import serve
from sbert_search.declared import declared
from sbert_search.errors import ConfigError
from sbert_search.serve.access import (
    VARIABLE,
    AccessTokens,
    ServerLimits,
    is_loopback,
    read_tokens,
    require_safe_address,
)

ONE, TWO = "1" * 16, "2" * 16


def test_tokens_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# readers\n{ONE}\n\n # withdrawn: x, {'4' * 16}\n{TWO} write\n")
    tokens = read_tokens(path, {VARIABLE: "ignored, since there is a file"})
    assert tokens.right_of(f"Bearer {ONE}".encode()) == "read"
    assert tokens.right_of(f"bearer  {TWO} ".encode()) == "write"
    for wrong in (
        None,
        b"",
        b"Bearer",
        ONE.encode(),
        f"Basic {ONE}".encode(),
        b"Bearer " + b"3" * 16,
        b"Bearer " + b"4" * 16,  # it is in a comment, after a comma
    ):
        assert tokens.right_of(wrong) is None
    assert ONE not in repr(tokens)


def test_tokens_of_the_environment() -> None:
    tokens = read_tokens(None, {VARIABLE: f"{ONE},{TWO} write"})
    assert sorted(tokens.rights.values()) == ["read", "write"]
    assert not read_tokens(None, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("short", "token 1: 5 characters; a token has at least 16"),
        (f"{ONE} admin", "token 1: write TOKEN, or TOKEN write"),
        (f"{ONE} write now", "token 1: write TOKEN"),
        ("# nothing\n", "holds no token"),
        ("\u00e9" * 16, "cannot be read"),
    ],
)
def test_wrong_tokens_are_named_and_not_shown(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as refused:
        read_tokens(path)
    assert ONE not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "absent")


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_an_open_address_needs_a_token_or_a_second_word() -> None:
    none, some = AccessTokens({}), AccessTokens({b"x": "read"})
    require_safe_address("127.0.0.1", none, without_token=False)
    require_safe_address("0.0.0.0", some, without_token=False)
    require_safe_address("0.0.0.0", none, without_token=True)
    with pytest.raises(ConfigError, match=r"--host 0\.0\.0\.0 can be reached by other machines"):
        require_safe_address("0.0.0.0", none, without_token=False)
    with pytest.raises(ConfigError, match="leave one of the two out"):
        require_safe_address("0.0.0.0", some, without_token=True)


def test_the_page_on_serving_lists_all_limits() -> None:
    flags = {param.name: f"`{param.opts[0]}`" for param in serve.params}
    rows = ["| limit | default | option |", "|---|---|---|"]
    for name, limit in declared(ServerLimits).items():
        row = f"| {limit.description} | {limit.default:,} | {flags.get(name, '')} |"
        rows.append(row.replace("  ", " "))
    table = "\n".join(rows)
    page = Path(__file__).parents[2] / "docs/serving.md"
    assert f"\n\n{table}\n\n" in page.read_text(encoding="utf-8"), f"write this table:\n{table}"
