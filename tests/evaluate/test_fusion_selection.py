"""Choosing a fusion on judged queries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.retrieval import CANDIDATES, choose_fusion
from sbert_search.index.index import Index
from sbert_search.records import Query
from sbert_search.search.options import Fusion
from sbert_search.text.labelled.retrieval import read_qrels, read_queries
from tests.cli.process import sbert_search

N_QUERIES = 20


class Wrong(HashingEmbedder):
    """Sees the next document in every query."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        numbers = [int(text.removeprefix("name")) + 1 for text in texts]
        return self.encode_document([f"word{n // 2} name{n}" for n in numbers])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of two words; each query is the second word of one of them."""
    folder = tmp_path_factory.mktemp("fusing") / "data"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "text": f"word{n // 2} name{n}"} for n in range(60)]
    queries = [{"_id": f"q{n}", "text": f"name{n}"} for n in range(N_QUERIES)]
    for name, lines in (("corpus", rows), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(N_QUERIES))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    Index.build(folder, out=folder.with_name("i"), model=HashingEmbedder())
    return folder


def test_a_stage_that_misleads_gets_no_weight(data: Path) -> None:
    index, qrels, queries = (
        Index.open(data.with_name("i")),
        read_qrels(data, "train"),
        read_queries(data),
    )
    choice = choose_fusion(index, Wrong(), queries, qrels)
    assert choice.fusion.dense_weight == 0
    assert choice.scores["weighted, dense 0"] == choice.held_out == 1.0
    assert choice.default == choice.scores["weighted, dense 0.4"]
    assert choice.scores["weighted, dense 1"] < 0.6
    assert set(choice.folds) == {"weighted, dense 0"}


def test_the_searches_have_the_filter(data: Path) -> None:
    index, qrels = Index.open(data.with_name("i")), read_qrels(data, "train")
    even = [query for query in read_queries(data) if int(query.query_id[1:]) % 2 == 0]
    where = ("doc_id IN ?", [[f"d{n}" for n in range(0, 60, 2)]])
    # The next document, which `Wrong` sees, is left out; it shares a word with the right one.
    choice = choose_fusion(index, Wrong(), even, qrels, where=where)
    assert choice.scores["weighted, dense 1"] == 1.0
    line = ("eval", "fusion", data.with_name("i"), data)
    done = sbert_search(*line, "--where", "doc_id <> 'd3'")
    assert "1 of 20 queries have relevant documents that the filter leaves out" in done.err


def test_the_default_stays_where_choosing_does_not_gain(data: Path) -> None:
    index, qrels = Index.open(data.with_name("i")), read_qrels(data, "train")
    choice = choose_fusion(index, HashingEmbedder(), read_queries(data), qrels)
    assert choice.held_out <= choice.default == 1.0
    assert choice.fusion == Fusion()


class Unasked(HashingEmbedder):
    """Fails if a query is embedded."""

    def encode_query(self, texts: Sequence[str]) -> Vectors:
        raise AssertionError


def test_wrong_settings_and_queries_are_refused_before_any_search(data: Path) -> None:
    index, qrels = Index.open(data.with_name("i")), read_qrels(data, "train")
    queries = read_queries(data)
    for few, folds in ((queries[:3], 5), (queries[:3], 1)):
        message = f"folds is {folds}; it must be from 2 to the number of judged queries, 3"
        with pytest.raises(EvaluationError, match=message):
            choose_fusion(index, Unasked(), few, qrels, folds=folds)
    with pytest.raises(EvaluationError, match="judged queries is 1; choosing"):
        choose_fusion(index, Unasked(), queries[:1], qrels)
    with pytest.raises(EvaluationError, match="'ndcg10' is not a metric"):
        choose_fusion(index, Unasked(), queries, qrels, measure="ndcg10")
    with pytest.raises(EvaluationError, match="No fusion finds a relevant document"):
        choose_fusion(index, HashingEmbedder(), queries, {q.query_id: {"x": 1} for q in queries})
    with pytest.raises(EvaluationError, match="The query 'new' has no judgements"):
        choose_fusion(index, Unasked(), [*queries, Query("new", "x")], qrels)


def test_the_command_names_the_best_and_what_to_expect(data: Path) -> None:
    done = sbert_search("eval", "fusion", data.with_name("i"), data)
    assert "--fusion weighted --dense-weight" in done.out
    assert "for `search`, `serve` and `mcp`)" in done.out
    assert f"{N_QUERIES} queries of the split train:" in done.out
    assert "run `eval retrieval` on other queries." in done.out
    (record,) = sbert_search("eval", "fusion", data.with_name("i"), data, "--json").records
    assert (record["queries"], len(record["scores"]), len(record["folds"])) == (N_QUERIES, 12, 5)
    refused = sbert_search("eval", "fusion", data.with_name("i"), data, "--split", "dev")
    assert (refused.code, "existing splits: train" in refused.err) == (1, True)


def test_every_candidate_is_a_choice_of_the_options_of_a_search() -> None:
    assert {fusion.rrf_k for fusion in CANDIDATES} == {Fusion().rrf_k}


def test_the_command_reads_pairs_as_it_reads_a_folder(data: Path, tmp_path: Path) -> None:
    pairs, index = tmp_path / "pairs.csv", data.with_name("i")
    rows = [f"name{n},{f'd{n}' if n % 2 else f'word{n // 2} name{n}'}" for n in range(N_QUERIES)]
    pairs.write_text("\n".join(["query,positive", *rows]))
    (of_pairs,) = sbert_search("eval", "fusion", index, pairs, "--json").records
    (of_folder,) = sbert_search("eval", "fusion", index, data, "--json").records
    assert of_pairs == of_folder
    assert f"{N_QUERIES} queries of pairs.csv:" in sbert_search("eval", "fusion", index, pairs).out
    pairs.write_text("query,positive\nname1,a text that no document has\n")
    refused = sbert_search("eval", "fusion", index, pairs)
    assert (refused.code, "is neither the text nor the id of a document" in refused.err) == (
        1,
        True,
    )


def test_judgements_may_name_groups(tmp_path: Path) -> None:
    rows = [
        {"_id": f"d{n}", "text": f"word{n // 2} name{n}", "paper": f"p{n // 2}"} for n in range(40)
    ]
    Index.build(rows, out=tmp_path / "i", model=HashingEmbedder())
    (tmp_path / "qrels").mkdir()
    judged = "".join(f"q{n}\tp{n}\t1\n" for n in range(20))
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    asked = [{"_id": f"q{n}", "text": f"word{n}"} for n in range(20)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    line = ("eval", "fusion", tmp_path / "i", tmp_path, "--json")
    (record,) = sbert_search(*line, "--group-by", "paper").records
    assert record["scores"]["weighted, dense 0"] == 1.0  # both pages of a paper count as its first
    done = sbert_search(*line)
    assert "20 of 20 queries have relevant documents that are not in the index" in done.err
    assert (done.code, "No fusion finds a relevant document" in done.err) == (1, True)
