"""The names of the classes of a Hugging Face dataset (ClassLabel) are the values of its columns."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest
from datasets import ClassLabel, Features, List, Value

from sbert_search import Index, SearchEngine
from sbert_search.errors import CorpusError
from sbert_search.evaluate import evaluate
from sbert_search.text.labelled.pairs import read_pairs, read_triplets
from sbert_search.text.labelled.texts import read_labelled_texts
from sbert_search.train.data.examples import DataConfig, read_examples


@pytest.fixture
def dataset() -> datasets.Dataset:
    tone, kind = ClassLabel(names=["neg", "pos"]), ClassLabel(names=["a", "b", "c"])
    features = Features(
        {"id": Value("string"), "text": Value("string"), "label": tone, "kinds": List(kind)}
    )
    rows = {
        "id": ["1", "2", "3"],
        "text": ["mill", "bread", "sea"],
        "label": [1, 0, -1],
        "kinds": [[0, 2], [], [1]],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def require_names(index: Index) -> None:
    assert index.info().columns == {"label": "string", "kinds": "list[string]"}
    found = {each.doc_id: dict(each.metadata) for each in index}
    assert found == {
        "1": {"label": "pos", "kinds": ["a", "c"]},
        "2": {"label": "neg", "kinds": []},
        "3": {"kinds": ["b"]},  # -1: no class
    }
    hits = SearchEngine(index).search("mill", where="label = 'pos' AND 'c' IN kinds")
    assert [hit.doc_id for hit in hits] == ["1"]


def test_classes_of_a_dataset_have_names(dataset: datasets.Dataset, tmp_path: Path) -> None:
    require_names(Index.build(dataset, model="hashing"))
    require_names(Index.build(dataset.to_iterable_dataset(), model="hashing"))
    dataset.to_parquet(tmp_path / "a.parquet")
    require_names(Index.build(tmp_path / "a.parquet", model="hashing"))
    dataset.save_to_disk(tmp_path / "saved")
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    require_names(Index.build(arrow, model="hashing"))


def test_a_column_of_numbers_keeps_the_numbers(dataset: datasets.Dataset, tmp_path: Path) -> None:
    types = {"label": "int"}
    index = Index.build(dataset, out=tmp_path / "i", model="hashing", column_types=types)
    assert index.info().columns == {"label": "int64", "kinds": "list[string]"}
    assert [each.doc_id for each in index.documents("label = 1")] == ["1"]
    numbers = [{"id": "0", "text": "x", "label": 5}]
    older = Index.build(numbers, out=tmp_path / "older", model="hashing")
    older.add(dataset)  # an index of an earlier version has numbers
    assert [each.doc_id for each in older.documents("label = 1")] == ["1"]


def test_labelled_texts_have_the_names_and_no_text_without_a_class(
    dataset: datasets.Dataset, tmp_path: Path
) -> None:
    dataset.select([0, 1]).to_parquet(tmp_path / "a.parquet")
    assert [row.label for row in read_labelled_texts(tmp_path / "a.parquet")] == ["pos", "neg"]
    numbers = read_labelled_texts(tmp_path / "a.parquet", kind="number")
    assert [row.label for row in numbers] == [1.0, 0.0]
    dataset.to_parquet(tmp_path / "all.parquet")
    with pytest.raises(CorpusError, match="3: 'label' must be the name of a class"):
        read_labelled_texts(tmp_path / "all.parquet")


@pytest.fixture
def pairs() -> datasets.Dataset:
    names = ClassLabel(names=["entailment", "neutral", "contradiction"])
    features = Features(
        {"sentence1": Value("string"), "sentence2": Value("string"), "label": names}
    )
    rows = {"sentence1": list("abcd"), "sentence2": list("efgh"), "label": [0, 1, 2, -1]}
    return datasets.Dataset.from_dict(rows, features=features)


def test_labels_of_pairs_have_their_meaning(pairs: datasets.Dataset, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pairs.to_parquet(path)
    found = [pair.label for pair in read_pairs(path)]
    assert found == ["entailment", "neutral", "contradiction", "-"]
    assert [row.target for row in read_examples(path, DataConfig(train=path), "label")] == found[:3]
    pairs.select([0]).to_parquet(path)  # the number 0 alone would be that of a negative pair
    assert len(read_pairs(path, positive=True)) == len(read_triplets(path, allow_pairs=True)) == 1
    for n in (1, 2, 3):
        pairs.select([n]).to_parquet(path)
        with pytest.raises(CorpusError, match="'label' says that the texts are no pair"):
            read_pairs(path, positive=True)
        with pytest.raises(CorpusError, match="'label' says that the texts are no pair"):
            read_triplets(path, allow_pairs=True)


def test_pairs_are_told_apart_by_names(pairs: datasets.Dataset) -> None:
    names = ClassLabel(names=["same", "not_same"])
    rows = pairs.select([0, 1, 1]).cast_column("label", names)
    measured = evaluate("hashing", rows)
    assert measured.counts["pairs with the label 1"] == 1


def test_a_number_without_a_name_is_a_bad_row(tmp_path: Path) -> None:
    two, three = (ClassLabel(names=list("abc")[:n]) for n in (2, 3))
    rows = {"text": ["x", "y"], "label": [1, 2]}
    features = Features({"text": Value("string"), "label": three})
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.info.features = Features({"text": Value("string"), "label": two})
    dataset.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match="column 'label' is of type string, this value is of"):
        Index.build(tmp_path / "a.parquet", model="hashing")
