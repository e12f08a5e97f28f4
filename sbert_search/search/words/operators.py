"""Operators in the text of a query: "exact phrase", +must and -not.

docs/start/search.md has the table of rules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbert_search.errors import QueryError

# An operator counts only at the start of a word. A phrase ends before a blank or a punctuation
# mark. + and - count only before a phrase, a letter, or a digit that does not begin the query.
_OPERATOR = re.compile(
    r"""(?<!\S)(?P<sign>[+-]?)(?:"(?P<straight>[^"]*)"|“(?P<curly>[^“”]*)”)(?!\w)
      | (?<!\S)(?P<word_sign>[+-])(?P<word>[^\W_]\S*)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A word or phrase that documents must have, or must not have.

    Attributes:
        text: The word or phrase, without its operator.
        quoted: Whether the text was in quotes, which means that it must occur exactly as written.
        excluded: Whether documents must not have the word or phrase.
    """

    text: str
    quoted: bool = False
    excluded: bool = False

    def __str__(self) -> str:
        words = f'"{self.text}"' if self.quoted else self.text
        return f"-{words}" if self.excluded else words if self.quoted else f"+{words}"


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query without its operators.

    Attributes:
        text: The text to embed and to score: the query without the words to exclude, and without
            the plus signs and quotes of operators. A query without operators is unchanged.
        clauses: The demands of the operators; a document must meet all of them.
    """

    text: str
    clauses: tuple[Clause, ...] = ()


def parse_query(query: str) -> ParsedQuery:
    """Find the operators in a query. A query of several lines has none: it is taken for plain text.

    Raises:
        QueryError: The query has only words to exclude.
    """
    clauses: list[Clause] = []
    kept: list[str] = []
    end = 0
    for match in _OPERATOR.finditer(query) if len(query.splitlines()) == 1 else ():
        clause = _clause(match)
        if clause is not None:
            kept += query[end : match.start()], "" if clause.excluded else clause.text
            clauses.append(clause)
            end = match.end()
    if not clauses:
        return ParsedQuery(query)
    text = " ".join("".join([*kept, query[end:]]).split())
    if not text:
        raise QueryError(
            f"{query!r} has only words to exclude; add words to search for, or put the text in "
            "double quotes to search for it as it is."
        )
    return ParsedQuery(text, tuple(dict.fromkeys(clauses)))


def _clause(match: re.Match[str]) -> Clause | None:
    """Return the clause of a match of `_OPERATOR`; None if it contains no word to look up.

    A query that begins with a sign and a digit, as "-5 degrees" and "+49 170" do, begins with a
    number.
    """
    if (word := match["word"]) is not None:
        is_number = not word[0].isalpha() and not match.string[: match.start()].strip()
        return None if is_number else Clause(word, excluded=match["word_sign"] == "-")
    text = match["straight"] if match["straight"] is not None else match["curly"]
    words = " ".join(text.split())
    if not re.search(r"\w", words):
        return None
    return Clause(words, quoted=True, excluded=match["sign"] == "-")
