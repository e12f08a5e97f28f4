"""Files to rows of texts: every form, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.train.bi_encoder_losses import LossConfig
from sbert_search.train.data.examples import (
    ColumnNames,
    DataConfig,
    Example,
    TargetKind,
    read_examples,
)
from sbert_search.train.dev_metrics import dev_evaluator
from tests.models.tiny import tiny_bi_encoder

SECTIONS = {
    "text": "Lead.\n# One\nThe first part begins right here. The first part ends right there.\n"
    "# Two\nThe second part is a single sentence."
}


def read(path: Path, rows: list[Any], wanted: TargetKind = "nothing", **data: Any) -> list[Example]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_examples(path, DataConfig(train=path, **data), wanted)


def pair(**more: Any) -> dict[str, Any]:
    return {"sentence1": "a", "sentence2": "b", **more}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def texts(examples: list[Example]) -> list[tuple[str, ...]]:
    return [example.texts for example in examples]


def test_scores_become_0_to_1(path: Path) -> None:
    (example,) = read(path, [pair(score=4)], "score")
    assert example == Example(("a", "b"), 0.8, f"{path}:1")


def test_labels_are_renamed_and_passed_over(path: Path) -> None:
    rows = [pair(label="entailed"), pair(label="-"), pair(label="neutral")]
    found = read(
        path,
        rows,
        "label",
        labels=("neutral", "entailment"),
        rename={"entailed": "entailment"},
    )
    assert [example.target for example in found] == ["entailment", "neutral"]


def test_nli_gives_each_premise_what_it_entails_and_what_contradicts_it(path: Path) -> None:
    def row(premise: str, hypothesis: str, label: str) -> dict[str, str]:
        return {"sentence1": premise, "sentence2": hypothesis, "label": label}

    rows = [
        row("p", "e1", "entailment"),
        row("p", "c", "contradiction"),
        row("p", "e2", "entailment"),
        row("q", "e3", "entailment"),
        row("r", "n", "neutral"),
    ]
    assert texts(read(path, rows, form="nli")) == [("p", "e1", "c"), ("p", "e2", "c"), ("q", "e3")]


def test_groups_pair_each_text_with_the_next(path: Path) -> None:
    found = read(path, [{"texts": ["a", "b", "c"]}, {"texts": ["d", "e"]}], form="groups")
    assert texts(found) == [("a", "b"), ("b", "c"), ("c", "a"), ("d", "e")]
    assert len({example.group for example in found}) == 2


def test_pairs_in_place_of_groups_are_told_their_form(path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no texts column .* data\.form=pairs; the "):
        read(path, [{"query": "q", "passage": "p"}], form="groups")


@pytest.mark.parametrize("told", [{"label": 0}, {"score": 0}, {"label": "contradiction"}])
def test_a_denied_pair_is_no_positive_of_a_loss_that_takes_all(
    path: Path, told: dict[str, object]
) -> None:
    rows = [pair(**{name: 1 for name in told}), pair(**told)]
    with pytest.raises(CorpusError, match=f"{path}:2: its .* says that the texts are no pair"):
        read(path, rows, form="pairs")
    assert len(read(path, rows[:1], form="pairs")) == 1
    columns = ColumnNames(label="clicked")
    with pytest.raises(CorpusError, match=f"{path}:1: its 'clicked' says"):
        read(path, [pair(clicked=0)], form="pairs", columns=columns)


def test_texts_are_taken_twice_each_once(path: Path) -> None:
    assert texts(read(path, [{"text": "x"}, {"text": "x"}], form="texts")) == [("x", "x")]
    assert texts(read(path, [pair()], form="texts")) == [("a", "a"), ("b", "b")]


@pytest.mark.parametrize("columns", [ColumnNames(text1="answer"), ColumnNames(text2="answer")])
def test_texts_of_one_named_column(path: Path, columns: ColumnNames) -> None:
    rows = [{"text": "q", "answer": "a"}]
    assert texts(read(path, rows, form="texts", columns=columns)) == [("a", "a")]


def test_a_bad_row_of_a_file_of_pairs_is_named_where_texts_are_wanted(path: Path) -> None:
    rows = [pair(), pair(sentence2=" ")]
    with pytest.raises(CorpusError, match=f"{path}:2: 'sentence2' must be a text"):
        read(path, rows, form="texts")
    with pytest.raises(CorpusError, match="Unknown text1 column 'anchr'; did you mean 'anchor'"):
        read(path, [{"anchor": "a"}], form="texts", columns=ColumnNames(text1="anchr"))


def test_sections_give_triplets(path: Path) -> None:
    found = read(path, [SECTIONS, {"text": "No heading."}], form="sections", per_document=2)
    assert len(found) == 2
    for anchor, positive, negative in texts(found):
        assert {anchor, positive} == {
            "The first part begins right here.",
            "The first part ends right there.",
        }
        assert negative == "The second part is a single sentence."


def test_a_file_of_triplets_is_read_as_it_is(path: Path) -> None:
    row = {"anchor": "a", "positive": "b", "negative": "c"}
    assert texts(read(path, [row], form="sections")) == [("a", "b", "c")]


def test_a_beir_folder_gives_its_relevant_pairs(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "d1", "title": "T", "text": "one"}\n{"_id": "d2", "text": "two"}\n'
    )
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "query"}\n')
    judged = "query-id\tcorpus-id\tscore\nq\td1\t1\nq\td2\t0\n"
    (tmp_path / "qrels" / "train.tsv").write_text(judged)
    found = read_examples(tmp_path, DataConfig(train=tmp_path, form="beir"), "nothing")
    assert texts(found) == [("query", "T one")]
    assert found[0].group == "q"
    (tmp_path / "qrels" / "dev.tsv").write_text(judged.replace("d2\t0", "d2\t1"))
    data = DataConfig(train=tmp_path, dev=tmp_path, form="beir")
    model = tiny_bi_encoder(tmp_path / "tokens")
    assert dev_evaluator(tmp_path, data, LossConfig(name="mnrl"), (), model).rows == 2


def test_single_texts_with_a_class(path: Path) -> None:
    found = read(path, [{"sentence": "good", "label": 1}], "label", form="classes")
    assert found[0] == Example(("good",), "1", f"{path}:1")
    assert read_examples(path, DataConfig(train=path, form="classes"), "nothing")[0].target is None
    rows = [{"text": "the same", "headline": "good", "label": 1}]
    named = read(path, rows, "label", form="classes", columns=ColumnNames(text1="headline"))
    assert named[0].texts == ("good",)


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_below_one_are_refused(number: int) -> None:
    with pytest.raises(ConfigError, match=f"data.limit is {number}; it must be at least 1"):
        DataConfig(train=Path("a"), limit=number)
    with pytest.raises(ConfigError, match=f"data.per_document is {number}; it must be at least 1"):
        DataConfig(train=Path("a"), per_document=number)


def test_a_limit_takes_the_first_rows(path: Path) -> None:
    assert len(read(path, [pair(), pair(), pair()], limit=2)) == 2


@pytest.mark.parametrize(
    ("row", "wanted", "data", "message"),
    [
        (pair(), "label", {}, "needs a label, .* among sentence1, sentence2. Name it with"),
        (pair(label=None), "label", {}, ":1: no 'label', which every pair must have"),
        (pair(label="x"), "label", {"labels": ("y", "xx")}, r":1: Unknown label 'x'; did you mean"),
        (pair(), "score", {}, "needs a score, but there is no such column"),
        (pair(score=6), "score", {}, r":1: 'score' must be from 0 to 5 \(6\)"),
        (pair(sentence2=" "), "nothing", {}, ":1: 'sentence2' must be a text that is not blank"),
        (pair(label="no"), "nothing", {"form": "nli"}, "no row has the label 'entailment'"),
        (pair(label="-"), "label", {}, "no row is left; all have"),
        ({"text": "Plain."}, "nothing", {"form": "sections"}, "no document has two sections"),
        ({"text": "x"}, "label", {"form": "classes"}, ":1: no 'label'; name the column"),
    ],
)
def test_bad_rows_are_refused_with_their_place(
    path: Path, row: Any, wanted: TargetKind, data: dict[str, Any], message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        read(path, [row], wanted, **data)


def test_scores_of_another_range_are_doubted(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(path, [pair(score=0.9), pair(score=0.1)], "score")
    assert "set data.score_range=[0, 0.9]" in " ".join(capsys.readouterr().err.split())


def test_settings_that_cannot_be(path: Path) -> None:
    with pytest.raises(ConfigError, match="1 values for 2 files"):
        DataConfig(train=(path, path), weights=(1.0,))
    with pytest.raises(ConfigError, match="above 0"):
        DataConfig(train=path, weights=(0.0,))
    with pytest.raises(ConfigError, match=r"data\.train is an empty list"):
        DataConfig(train=())
    with pytest.raises(ConfigError, match="must be the smaller one"):
        DataConfig(train=path, score_range=(1.0, 1.0))
