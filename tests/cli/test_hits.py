from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sbert_search.cli.console import SNIPPET_CHARS, show_hits, snippet_of
from sbert_search.records import Hit


def hit(text: str, best: str) -> Hit:
    return Hit(
        rank=1,
        doc_id="d",
        score=1.0,
        text=text,
        title="",
        metadata={},
        passage=text,
        best_sentence=best,
    )


def words(n: int, seed: int = 0) -> str:
    draw = random.Random(seed)
    return " ".join("x" * draw.randint(1, 12) for _ in range(n))


def test_a_short_text_is_shown_whole() -> None:
    assert str(snippet_of(hit("One. Two.", "Two."))) == "One. Two."


def test_a_sentence_that_is_not_in_the_text_is_not_marked() -> None:
    for best in ("A title.", ""):
        assert snippet_of(hit("One. Two.", best)).spans == []
    (marked,) = snippet_of(hit("One. Two.", "Two.")).spans
    assert (marked.start, marked.end) == (5, 9)


def test_lists_are_shown_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    shown = replace(hit("Text.", ""), metadata={"tags": ["red", "old mill"], "sizes": [], "n": 5})
    show_hits([shown])
    assert "tags red, old mill · sizes · n 5" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [0, 1, 4])
def test_a_terminal_without_a_width_shows_hits(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    show_hits([hit("The river turns the wheel.", "")])
    assert "    The river turns the wheel.\n" in capsys.readouterr().out


def test_times_are_shown_to_the_second(capsys: pytest.CaptureFixture[str]) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    show_hits([replace(hit("Text.", ""), metadata={"one": moment, "list": [moment]})])
    shown = "2026-01-02 03:04:05+00:00"
    assert f"one {shown} · list {shown}\n" in capsys.readouterr().out


def test_a_sentence_in_the_middle_has_words_around_it() -> None:
    text = f"{words(200)} Here it is. {words(200, 1)}"
    shown = str(snippet_of(hit(text, "Here it is.")))
    assert shown[:2] + shown[-2:] == "…  …"
    inner = shown[2:-2]
    assert f" {inner} " in text
    assert "Here it is." in inner
    assert SNIPPET_CHARS - 30 <= len(inner) <= SNIPPET_CHARS


@pytest.mark.parametrize("best_chars", [250, 300, 301, 600, 601, 5_000])
@pytest.mark.parametrize("before", [0, 50, 1_000])
def test_a_snippet_is_bounded_and_cuts_between_words(best_chars: int, before: int) -> None:
    best = words(2_000, 2)[:best_chars].rstrip() + "."
    text = " ".join(filter(None, [words(500, 1)[:before].strip(), best, words(3_000, 3)]))
    shown = str(snippet_of(hit(text, best)))
    inner = shown.removeprefix("… ").removesuffix(" …")
    assert len(inner) <= 2 * SNIPPET_CHARS
    assert f" {inner} " in f" {text} "
    assert best[:200] in inner


def test_a_text_without_spaces_is_cut_too() -> None:
    text = "z" * 100_000
    assert str(snippet_of(hit(text, text))) == "z" * (2 * SNIPPET_CHARS) + " …"
    assert str(snippet_of(hit(text, ""))) == "z" * SNIPPET_CHARS + " …"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_three_hits_take_at_most_forty_lines(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = words(5_000, 1)
    greedy = Hit(
        rank=1,
        doc_id=words(90, 2),
        score=1.0,
        text=long,
        title=words(200, 3),
        metadata={f"column {n}": words(30, n) for n in range(20)},
        passage=long,
        best_sentence=long,
        matched_words=tuple(words(200, 4).split()),
    )
    show_hits([greedy] * 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 39
    assert max(map(len, lines)) <= columns
    assert lines[1].endswith(" …")
