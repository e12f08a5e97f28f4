"""Tagged sentences from CoNLL columns and from rows, and the messages about bad ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value

from sbert_search.errors import CorpusError
from sbert_search.heads.labelled_spans import read_tagged_tokens

COLUMNS = """-DOCSTART- -X- O

EU NNP B-org
rejects VB O
Peter NNP B-person
Black NNP I-person

in IN O
"""
BIO = [("B-org", "O", "B-person", "I-person"), ("O",)]
BILOU = [("U-org", "O", "B-person", "L-person"), ("O",)]


def test_tags_have_the_names_of_their_numbers(tmp_path: Path) -> None:
    names = ClassLabel(names=["O", "B-PER"])
    features = Features({"tokens": List(Value("string")), "ner_tags": List(names)})
    rows = {"tokens": [["Ann", "ran"], ["Rye"]], "ner_tags": [[1, 0], [0]]}
    Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    found = read_tagged_tokens(tmp_path / "a.parquet")
    assert [each.tags for each in found] == [("B-PER", "O"), ("O",)]


def test_columns_and_rows_hold_the_same_sentences(tmp_path: Path) -> None:
    conll, packed = tmp_path / "a.conll", tmp_path / "a.tsv.gz"
    jsonl, parquet = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    conll.write_text(COLUMNS)
    with gzip.open(packed, "wt") as file:
        file.write(COLUMNS.replace(" ", "\t"))
    tokens = [["EU", "rejects", "Peter", "Black"], ["in"]]
    table = {"tokens": tokens, "ner_tags": [list(tags) for tags in BIO]}
    jsonl.write_text(
        "".join(
            json.dumps({"tokens": words, "tags": tags}) + "\n"
            for words, tags in zip(tokens, BIO, strict=True)
        )
    )
    pq.write_table(pa.table(table), parquet)
    for path in (conll, packed, jsonl, parquet):
        sentences = read_tagged_tokens(path)
        assert [sentence.tags for sentence in sentences] == BIO
        assert [list(sentence.tokens) for sentence in sentences] == tokens
        assert [s.tags for s in read_tagged_tokens(path, to="bilou")] == BILOU
    assert read_tagged_tokens(conll)[1].source == f"{conll}:8"


@pytest.mark.parametrize("separator", [" ", "\t", "  "])
def test_white_space_outside_ascii_belongs_to_a_token(tmp_path: Path, separator: str) -> None:
    path, tokens = tmp_path / "a.conll", ("3\u00a0km", "\u3000", "x\u2028y")
    path.write_text("".join(f"{token}{separator}O\n" for token in tokens), encoding="utf-8")
    (sentence,) = read_tagged_tokens(path)
    assert (sentence.tokens, sentence.tags) == (tokens, ("O", "O", "O"))


def test_the_scheme_is_detected_in_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bilou"
    path.write_text("Peter B-person\nBlack L-person\n\nEU U-org\n")
    sentences = read_tagged_tokens(path, to="bio")
    assert [sentence.tags for sentence in sentences] == [("B-person", "I-person"), ("B-org",)]
    with pytest.raises(CorpusError, match="BIO does not allow"):
        read_tagged_tokens(tmp_path / "a.bilou", scheme="bio", bad_tags="refuse")


def test_bad_sequences_are_refused_or_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("x O\nin O\nNew I-place\nYork I-place\n")
    with pytest.raises(CorpusError) as error:
        read_tagged_tokens(path)
    assert str(error.value) == (
        f"{path}:3: BIO does not allow the tag 'I-place' of token 3, 'New', after O. "
        "Fix it, or make it begin an entity: data.bad_tags=repair in a training, "
        'bad_tags = "repair" in a task file.'
    )
    assert read_tagged_tokens(path, bad_tags="repair")[0].tags == ("O", "O", "B-place", "I-place")
    path.write_text("x O\nNew B-place\n\nEU U-org\n")
    with pytest.raises(CorpusError, match=r"a\.conll:2: BILOU .* before the end of the sentence"):
        read_tagged_tokens(path)
    assert read_tagged_tokens(path, bad_tags="repair")[0].tags == ("O", "U-place")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "a O\nb\n", "a.conll:2: the line must have 2 columns, like the first line, a"),
        ("a.conll", "a\n", "a.conll:1: the line must have 2 columns, a token first"),
        ("a.conll", "New York B-x\nin O\n", "a.conll:2: the line must have 3 columns, like the"),
        ("a.conll", "a E-x\n", "a.conll:1: the tag 'E-x' is not O, B-TYPE, I-TYPE, L-TYPE or U-"),
        ("a.conll", "\n\n", "a.conll: holds no tagged sentences"),
        (
            "a.jsonl",
            '{"tokens": ["a", "b"], "tags": ["O"]}',
            "a.jsonl:1: 2 tokens and 1 tags; each token needs a tag. Fix it.",
        ),
        ("a.jsonl", '{"tokens": [], "tags": []}', "a.jsonl:1: 'tokens' is an empty list"),
        ("a.jsonl", '{"tokens": "a b", "tags": []}', "'tokens' must be a list of texts ('a b')"),
        (
            "a.jsonl",
            '{"tokens": ["a"], "tags": [3]}',
            "the names of numbered tags",
        ),
        ("a.jsonl", '{"tokens": ["a"]}', "no tags column among tokens"),
        ("a.jsonl", '{"tokens": ["a"]}', "[columns] tags = NAME in a task file, data.col"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(CorpusError) as error:
        read_tagged_tokens(path)
    assert message in str(error.value)


def test_a_file_without_rows_or_without_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("")
    with pytest.raises(CorpusError, match=r"t\.jsonl: holds no tagged sentences"):
        read_tagged_tokens(path)
    path.write_text("{}\n")
    with pytest.raises(CorpusError, match=r"no \w+ column, since the first rows have"):
        read_tagged_tokens(path)
