"""Regular expressions of a tokenizer that can take exponential time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from sbert_search.errors import ModelError
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.text.tokens.vocabulary import repeats_repeats
from tests.models.tiny import tiny_tokenizer

PUBLISHED = (
    # GPT-2, Llama 3, Qwen 2, o200k
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
)
HARMLESS: tuple[str, ...] = (
    r" {2,}",
    r"(?:\r\n|\n)+",
    r"[(a+)+]",
    r"\(a+\)+",
    r"(a+){1,3}",
    r"(a+)b",
    "[]a]+",
)
HARMLESS += (r"(?>a+)+", r"(a++)+", r"(a+)++", r"(a{1,5})+", r"((?>a+)b)+")
SLOW = (r"(a+)+", r"(?:\w+\s?)+!", r"((a*))*", r"(a+|b)*c", r"(a{2,})+", r"(?:x(y+)z)*", r"(.*)*?")


@pytest.mark.parametrize("pattern", PUBLISHED + HARMLESS)
def test_what_tokenizers_are_published_with_is_taken(pattern: str) -> None:
    assert not repeats_repeats(pattern)


@pytest.mark.parametrize("pattern", SLOW)
def test_repeated_repetitions_are_found(pattern: str) -> None:
    assert repeats_repeats(pattern)


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_a_tokenizer_that_may_take_for_ever_is_refused(tmp_path: Path, part: str) -> None:
    """Without the refusal this test would not end."""
    backend = tiny_tokenizer(tmp_path).backend
    slow = Regex(r"^(\w+\s?)+!$")
    if part == "normalizer":
        backend.normalizer = normalizers.Sequence([normalizers.Replace(slow, " ")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(slow, "isolated")])
    (tmp_path / "tokenizer.json").write_text(backend.to_str(), "utf-8")
    with pytest.raises(ModelError, match=r"expression .*, which repeats a group"):
        TextTokenizer.from_folder(tmp_path, 24).encode(["word " * 40 + "?"])
