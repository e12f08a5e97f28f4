from pathlib import Path

import pytest

from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.chunking import split_sections

ARTICLE = """A hill in the north. It is low.
History.
It was climbed in 1911. Nobody knows by whom.
Early life.
Geology.
It is made of chalk, which is soft. Rain takes a little of it away every year.
"""


def test_short_lines_that_end_in_a_full_stop_are_headings() -> None:
    found = [(s.heading, s.sentences) for s in split_sections(ARTICLE)]
    assert found == [
        ("", ("A hill in the north.", "It is low.")),
        # a short line before another heading is a paragraph
        ("History", ("It was climbed in 1911.", "Nobody knows by whom.", "Early life.")),
        (
            "Geology",
            ("It is made of chalk, which is soft.", "Rain takes a little of it away every year."),
        ),
    ]


def test_marked_headings() -> None:
    text = "# Title\nOne.\n\n## Part two\nTwo. Three.\n== Wiki ==\nFour."
    found = [(s.heading, s.sentences) for s in split_sections(text)]
    assert found == [
        ("Title", ("One.",)),
        ("Part two", ("Two.", "Three.")),
        ("Wiki", ("Four.",)),
    ]


def test_headings_in_wiki_syntax_have_equal_bars() -> None:
    lines = ["==Wiki==", "=== A = b ===", "======Six======", "=======Seven=======", "== ==", "===="]
    lines += ["== a", "== a =", "== a ===", "#one"]
    found = [s.heading for s in split_sections("".join(f"{line}\nText.\n" for line in lines))]
    assert found == ["Wiki", "A = b", "Six", "a ="]


def test_a_long_line_of_blanks_takes_no_time() -> None:
    line = "== a" + " " * 200_000 + "b"
    assert [s.heading for s in split_sections(f"{line}\n== b ==\nText.")] == ["", "b"]


def test_a_text_without_headings_is_one_section() -> None:
    assert [s.heading for s in split_sections("One. Two.\nThree.")] == [""]
    assert split_sections(" \n") == []


@pytest.mark.thorough
def test_most_articles_have_two_sections(real_data: Path) -> None:
    (batch, *_) = CorpusReader([real_data / "wikipedia-en-2014/valid.jsonl.xz"]).batches()
    several = [len(split_sections(document.text)) > 1 for document in batch.documents]
    assert sum(several) > 0.8 * len(several)
