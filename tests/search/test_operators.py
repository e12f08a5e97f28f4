"""Operators in a query: what counts as one, and what stays text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.errors import QueryError
from sbert_search.search.queries import Clause, ParsedQuery, parse_query


@pytest.mark.parametrize(
    ("query", "text", "clauses"),
    [
        ("germ -vaccine", "germ", [Clause("vaccine", excluded=True)]),
        ("+germ vaccine", "germ vaccine", [Clause("germ")]),
        ('find "water mill" here', "find water mill here", [Clause("water mill", quoted=True)]),
        ('+"water mill"', "water mill", [Clause("water mill", quoted=True)]),
        ('mill -"water  mill"', "mill", [Clause("water mill", quoted=True, excluded=True)]),
        ("“water mill”, old", "water mill, old", [Clause("water mill", quoted=True)]),
        ('is it "new"?', "is it new?", [Clause("new", quoted=True)]),
        ("a -b2b c", "a c", [Clause("b2b", excluded=True)]),
        ("x +état-major", "x état-major", [Clause("état-major")]),
        ("vitamin -C", "vitamin", [Clause("C", excluded=True)]),
        ("release -7", "release", [Clause("7", excluded=True)]),
        ("chapter +4 -12", "chapter 4", [Clause("4"), Clause("12", excluded=True)]),
        ("code -C++", "code", [Clause("C++", excluded=True)]),
        ('+"5" degrees', "5 degrees", [Clause("5", quoted=True)]),
        ("a -bc a -bc", "a a", [Clause("bc", excluded=True)]),
        ('" -vaccine germ', '" germ', [Clause("vaccine", excluded=True)]),
    ],
)
def test_operators_are_taken_out_of_the_text(query: str, text: str, clauses: list[Clause]) -> None:
    assert parse_query(query) == ParsedQuery(text, tuple(clauses))


@pytest.mark.parametrize(
    "query",
    [
        "state-of-the-art",
        "a - b",
        "-",
        "+",
        'an unbalanced "quote',
        '5" disk and 3" reel',
        "-5 degrees",
        "+49 170 1234567",
        "it's 'quoted' here",
        "a->b",
        "x ->b",
        "--flag",
        " -5 degrees",
        "C++ -_private",
        '"" "?!"',
        '"one"two',
        "covid-19 -- a study",
        '- item one\n- +item two\n"three"',
        "  blanks   stay  ",
        "",
    ],
)
def test_other_queries_are_unchanged(query: str) -> None:
    assert parse_query(query) == ParsedQuery(query)


@pytest.mark.parametrize("query", ["-vaccine", ' -vaccine -"a germ" ', '-"x"', "-C"])
def test_a_query_of_words_to_exclude_is_refused(query: str) -> None:
    with pytest.raises(QueryError, match=r"only words to exclude; .*double quotes"):
        parse_query(query)


PIECES = st.sampled_from(["+", "-", '"', "“", "”", " ", "\n", "a", "it", "5", "é", "_", "?", "ß"])


@given(st.text() | st.lists(PIECES).map("".join))
def test_no_text_breaks_the_parser(query: str) -> None:
    try:
        parsed = parse_query(query)
    except QueryError:
        assert "-" in query
        return
    assert parsed.text.strip() or not query.strip()
    assert (parsed.text == query) or parsed.clauses
    for clause in parsed.clauses:
        assert clause.text.strip() == clause.text != ""
        assert all(word in query for word in clause.text.split())


@given(st.text(st.characters(exclude_characters='+-"“')))
def test_a_query_without_signs_has_no_operators(query: str) -> None:
    assert parse_query(query) == ParsedQuery(query)


@given(st.lists(st.sampled_from(["germ", "mill", "-water", "+river", '"the mill"', "- x"])))
def test_an_operator_reads_back_as_written(words: list[str]) -> None:
    if any(not word.startswith("-") for word in words):
        clauses = parse_query(" ".join(words)).clauses
        kept = dict.fromkeys(word for word in words if word[0] in '+"' or word == "-water")
        assert [str(clause) for clause in clauses] == list(kept)
