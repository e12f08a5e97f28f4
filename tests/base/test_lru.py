"""`typed_lru_cache`: its cache, and the signature that type checkers see."""

from __future__ import annotations

from typing import assert_type

from sbert_search.base.cache import CachedFunction, typed_lru_cache


def test_results_are_kept_until_others_need_their_place() -> None:
    calls: list[tuple[int, str]] = []

    @typed_lru_cache(maxsize=2)
    def repeat(count: int, text: str, /) -> str:
        calls.append((count, text))
        return count * text

    # mypy checks this line: with the type of `functools.lru_cache` it would be an error.
    assert_type(repeat, CachedFunction[[int, str], str])
    assert [repeat(2, "a"), repeat(2, "a"), repeat(1, "b")] == ["aa", "aa", "b"]
    assert calls == [(2, "a"), (1, "b")]
    assert repeat(0, "c") == ""  # takes the place of "aa"
    assert repeat(2, "a") == "aa"
    assert calls[2:] == [(0, "c"), (2, "a")]
    repeat.cache_clear()
    assert repeat(2, "a") == "aa"
    assert len(calls) == 5
