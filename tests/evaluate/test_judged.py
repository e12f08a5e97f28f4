"""The public functions: judged data in files and in memory, for models, engines and run files."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from sklearn.metrics import average_precision_score, f1_score

from sbert_search import Index, Reranker, SearchEngine
from sbert_search.cli.main import cli
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate import (
    Comparison,
    Evaluation,
    compare,
    compare_searches,
    evaluate,
    evaluate_run,
)
from sbert_search.evaluate.metrics.classification import average_precision, best_thresholds
from sbert_search.records import Query
from tests.models.tiny import tiny_cross_encoder

PAIRS = [
    {"query": "why do bees dance", "positive": "How bees dance to show where flowers are"},
    {"query": "moon and tides", "positive": "The moon pulls the sea and makes tides"},
    {"query": "moon and tides", "positive": "Ebb and flow come from the moon"},
    {"query": "zebra stripes", "positive": "Horses of the savanna"},
]


def test_pairs_are_judged_as_a_search_of_their_positives() -> None:
    found = evaluate("hashing", PAIRS, mode="dense")
    assert found.counts["queries"] == 3
    assert found.counts["documents"] == 4
    values = [*found.per_item["nDCG@10"].values()]
    assert values[:2] == [1.0, 1.0]  # both texts about the moon are first
    assert values[2] < 1.0
    assert found.main_score == pytest.approx(np.mean(values))
    low, high = found.intervals["nDCG@10"]
    assert 0 <= low <= found.main_score <= high <= 1
    assert str(found).startswith(f"nDCG@10 {found.main_score:.3f} ({low:.3f} to {high:.3f}), ")
    assert str(found).endswith("; 3 queries")
    assert "per_item" not in repr(found)  # a prompt shows it, which may be of thousands of queries
    assert "changes" not in repr(compare(found, found, draws=100))


def test_files_frames_and_rows_give_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["query", "positive"])
        writer.writeheader()
        writer.writerows(PAIRS)
    own = evaluate("hashing", PAIRS).per_item
    assert evaluate("hashing", path).per_item == own
    assert evaluate("hashing", pd.DataFrame(PAIRS)).per_item == own
    done = CliRunner().invoke(cli, ["eval", "retrieval", str(path), "--model", "hashing", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["score"] == evaluate("hashing", path).main_score


def test_negatives_are_documents_that_do_not_answer() -> None:
    row = {"query": "a dance of bees", "positive": "Insects show where", "negative": "bees dance"}
    assert evaluate("hashing", [row]).per_item["MRR@10"] == {"1": 0.5}


def test_searches_are_compared_by_the_queries_that_are_asked(tmp_path: Path) -> None:
    engine = SearchEngine(Index.from_texts(["a river mill", "a loaf"], model="hashing"))
    best = engine.search("river mill", k=1)[0].doc_id
    judged = tmp_path / "qrels.tsv"
    lines = [f"{query}\t{best}\t1\n" for query in ("asked", "other", "third")]
    judged.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    found = compare_searches(engine, engine, [Query("asked", "river mill")], judged)
    assert found.judged is not None
    assert (found.judged.first, len(found.judged.changes)) == (1.0, 1)
    empty = compare_searches(engine, engine, [Query("1", "zzz")], mode="lexical")
    assert (empty.overlap, empty.same_first) == (1.0, 1.0)


def test_a_query_that_is_a_document_too_does_not_find_itself() -> None:
    rows = [
        {"anchor": "old mills by the river", "positive": "a mill by a river"},
        {"anchor": "a mill by a river", "positive": "old mills by the river"},
    ]
    assert evaluate("hashing", rows).main_score == 1.0


def test_only_searches_by_words_guess_the_language(capsys: pytest.CaptureFixture[str]) -> None:
    text = "Das ist der Weg zu der alten Mühle und dem Fluss, und wir sind nicht in der Stadt"
    rows = [{"query": f"{n} {text}", "positive": f"{text} {n}."} for n in range(20)]
    evaluate("hashing", rows, mode="dense")
    assert "German" not in capsys.readouterr().err
    evaluate("hashing", rows, mode="lexical")
    assert "Most words look German" in capsys.readouterr().err


def test_an_engine_is_measured_on_its_own_index(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [pair["positive"] for pair in PAIRS]
    index = Index.from_texts([*texts, "why do bees dance", "moon and tides"], model="hashing")
    found = evaluate(SearchEngine(index), PAIRS)
    assert found.counts["documents"] == 6
    assert found.per_item["nDCG@10"]["1"] < 1.0  # the other document has the words of the query
    by_id = [{"query": "why do bees dance", "positive": "4"}]
    assert evaluate(index, by_id).main_score == 1.0
    gone = {"query": "bees", "positive": "gone"}
    with pytest.raises(EvaluationError, match=r"'gone' is neither the text nor the id"):
        evaluate(index, [gone])
    pages = Index.build([{"_id": "a.pdf#page=1", "text": "bees"}], model="hashing")
    with pytest.raises(EvaluationError, match=r"Each page of it is a document: 'a\.pdf#page=1'"):
        evaluate(pages, [{"query": "bees", "positive": "a.pdf"}])
    assert evaluate(index, [*by_id, gone]).main_score == 0.5
    said = "1 of 2 queries have relevant documents that are not in the index, 1 in all: gone"
    assert said in capsys.readouterr().err
    # An engine always searches, even if rows have a score or a label, as clicks do.
    for told in ("score", "label"):
        assert evaluate(index, [{**row, told: 1} for row in by_id]).scores["nDCG@10"] == 1.0


def test_every_document_with_the_text_of_a_positive_is_relevant() -> None:
    same, wheat = "Use the form.", "Flour and water make dough"
    rows = [
        {"id": "return", "title": "return a lamp", "text": same},
        {"id": "exchange", "title": "exchange a lamp", "text": same},
        {"id": "dough", "text": wheat},
    ]
    pairs = [
        {"query": "exchange lamp", "positive": same},
        {"query": "flour", "positive": wheat},
        {"query": "water", "positive": wheat.upper().replace(" ", "  ")},
    ]
    engine = SearchEngine(Index.build(rows, model="hashing"))
    found = evaluate(engine, pairs, mode="lexical")
    assert found.per_item["nDCG@10"] == {"1": 1.0, "2": 1.0, "3": 1.0}
    assert found.scores["recall@100"] == 1.0


def test_the_engines_reranker_counts() -> None:
    class Last:
        """Prefers the shortest text."""

        def predict(self, pairs: list[tuple[str, str]]) -> list[float]:
            return [-float(len(text)) for _, text in pairs]

    index = Index.from_texts(["bees dance for each other all day", "bees"], model="hashing")
    pairs = [{"query": "do bees dance", "positive": "bees"}]
    plain, reranked = (evaluate(SearchEngine(index, reranker=r), pairs) for r in (None, Last()))
    assert (plain.scores["MRR@10"], reranked.scores["MRR@10"]) == (0.5, 1.0)
    assert reranked.manifest["settings"]["reranker"] == "Last"


def test_two_systems_are_compared_on_the_same_queries_only() -> None:
    words, vectors = evaluate("hashing", PAIRS, mode="lexical"), evaluate("hashing", PAIRS)
    change = compare(words, vectors)
    assert isinstance(change, Comparison)
    assert change.difference.value == pytest.approx(vectors.main_score - words.main_score)
    assert "no difference shown" in str(change)
    with pytest.raises(EvaluationError, match="cannot be compared"):
        compare(words, evaluate("hashing", PAIRS[:2]))


SCORED = np.array([0.9, 0.8, 0.8, 0.6, 0.5, 0.4, 0.4, 0.1])
LABELS = np.array([1, 1, 0, 1, 0, 1, 0, 0])


def test_thresholds_are_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores, labels = rng.integers(0, 8, 20) / 8, rng.integers(0, 2, 20)
        by_accuracy, by_f1 = best_thresholds(scores, labels)
        cuts = [*(scores - 1 / 16), 2.0]
        assert ((scores >= by_accuracy) == labels).mean() == max(
            ((scores >= cut) == labels).mean() for cut in cuts
        )
        assert f1_score(labels, scores >= by_f1, zero_division=0) == pytest.approx(
            max(f1_score(labels, scores >= cut, zero_division=0) for cut in cuts)
        )


def test_average_precision_is_that_of_scikit_learn_also_with_weights() -> None:
    assert average_precision(SCORED, LABELS) == pytest.approx(
        average_precision_score(LABELS, SCORED)
    )
    weights = np.array([[1, 0, 2, 1, 3, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1, 1]])
    expected = [average_precision_score(LABELS, SCORED, sample_weight=w) for w in weights]
    assert average_precision(SCORED, LABELS, weights) == pytest.approx(expected)


def test_pairs_of_two_classes_have_a_threshold() -> None:
    rows = [
        {"text1": f"mill {n} by the river", "text2": f"mill {n} by the {other}", "label": label}
        for n in range(12)
        for other, label in (("river", 1), ("oven and the bread of the baker", 0))
    ]
    found = evaluate("hashing", rows)
    assert (found.scores["F1"], found.scores["accuracy"], found.scores["AP"]) == (1.0, 1.0, 1.0)
    assert 0 < found.scores["F1 threshold"] < 1
    noisy = evaluate("hashing", [*rows, {**rows[0], "label": 0}, {**rows[1], "label": 1}])
    assert {"F1", "precision", "recall", "accuracy", "AP"} <= noisy.intervals.keys()
    for low, high in noisy.intervals.values():
        assert 0 <= low < high <= 1
    with pytest.raises(EvaluationError, match="neither 0 nor 1"):
        evaluate("hashing", [{"text1": "a", "text2": "b", "label": "contradiction"}])


def test_scored_pairs_have_intervals_too(tmp_path: Path) -> None:
    rows = [
        {"text1": f"mill number {n}", "text2": "mill " + "bread " * (n % 5), "score": 5 - n % 5}
        for n in range(30)
    ]
    found = evaluate("hashing", rows)
    low, high = found.intervals["spearman"]
    assert low < found.main_score <= high
    by_pair = evaluate(Reranker(tiny_cross_encoder(tmp_path)), rows)
    assert "spearman" in by_pair.intervals
    with pytest.raises(ConfigError, match="not searched"):
        evaluate("hashing", rows, mode="dense")
    with pytest.raises(EvaluationError, match="finds no documents"):
        evaluate(Reranker(tiny_cross_encoder(tmp_path)), PAIRS)


@pytest.fixture
def trec(tmp_path: Path) -> Path:
    lines = [f"q{n} 0 d{n} 1" for n in range(8)]
    (tmp_path / "qrels.txt").write_text("\n".join(lines) + "\n")
    for name, own_rank in (("bm25", 2), ("ours", 1)):
        ranks = [
            f"q{n} Q0 {doc} {rank} {3 - rank} {name}\n"
            for n in range(7)
            for rank, doc in ((own_rank, f"d{n}"), (3 - own_rank, "other"))
        ]
        (tmp_path / f"{name}.trec").write_text("".join(ranks))
    return tmp_path


def test_runs_of_any_system_are_judged_and_compared(trec: Path) -> None:
    bm25, ours = (evaluate_run(trec / f"{n}.trec", trec / "qrels.txt") for n in ("bm25", "ours"))
    assert isinstance(bm25, Evaluation)
    assert (bm25.scores["MRR@10"], ours.scores["MRR@10"]) == (7 / 16, 7 / 8)  # q7 has no results
    assert bm25.counts["queries without results"] == 1
    assert compare(bm25, ours, metric="MRR@10").verdict == "second is better"
    arguments = ["eval", "run", *(str(trec / n) for n in ("qrels.txt", "bm25.trec", "ours.trec"))]
    shown = CliRunner().invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert "ours.trec (second) beside bm25.trec (first), nDCG@10: 0.552 and 0.875" in shown.stdout
    assert "queries without results: 1\n" in shown.stdout
    (trec / "new").mkdir()
    shutil.copy(trec / "ours.trec", trec / "new" / "bm25.trec")
    alike = [*arguments[:-1], str(trec / "new" / "bm25.trec")]
    shown = CliRunner().invoke(cli, alike)
    assert f"{alike[-1]} (second) beside {alike[-2]} (first)" in shown.stdout
    told = CliRunner().invoke(cli, [*arguments, "--json", "--metric", "MRR@10"])
    lines = [json.loads(line) for line in told.stdout.splitlines()]
    assert [line["scores"] for line in lines[:2]] == [{"MRR@10": 7 / 16}, {"MRR@10": 7 / 8}]
    assert lines[2]["verdict"] == "B is better"
    short = (trec / "bm25.trec").read_text().splitlines(keepends=True)[2:]
    (trec / "bm25.trec").write_text("".join(short))
    shown = CliRunner().invoke(cli, arguments)
    assert "queries without results: 2 in bm25.trec, 1 in ours.trec\n" in shown.stdout


def test_a_run_of_other_queries_is_refused(trec: Path) -> None:
    (trec / "qrels.txt").write_text("a1 0 d1 1\n")
    with pytest.raises(EvaluationError, match=r"None of the 7 queries .* such as 'q0'"):
        evaluate_run(trec / "ours.trec", trec / "qrels.txt")


def _one_of_each() -> Index:
    """Five documents, which the query vector (1, 0) scores 5 to 1, and (0, 1) scores 1 to 5."""
    vectors = [[float(5 - n), float(n + 1)] for n in range(5)]
    rows = [{"_id": f"d{n}", "text": f"text {n}"} for n in range(5)]
    return Index.build(rows, vectors=np.array(vectors, np.float32), metric="dot")


class Towards:
    """An engine that asks with one vector, whatever the queries are."""

    def __init__(self, index: Index, vector: list[float]) -> None:
        self.engine, self.vector = SearchEngine(index), np.array([vector], np.float32)

    def run(self, queries: list[Query], k: int, **options: Any) -> dict[str, dict[str, float]]:
        vectors = np.repeat(self.vector, len(queries), axis=0)
        return self.engine.run(queries, k, vectors=vectors, mode="dense", **options)


def test_the_hits_of_two_engines_are_compared(tmp_path: Path) -> None:
    index = _one_of_each()
    falling: Any = Towards(index, [1, 0])  # d0, d1, d2, d3, d4
    rising: Any = Towards(index, [0, 1])  # d4, d3, d2, d1, d0
    queries = [Query("q1", "one"), Query("q2", "two")]
    same = compare_searches(falling, falling, queries, k=3)
    assert (same.overlap, same.same_first, same.rank_correlation, same.judged) == (1, 1, 1, None)
    other = compare_searches(falling, rising, queries, k=3)  # both have d2 only
    assert (other.queries, other.k, other.overlap) == (2, 3, 1 / 3)
    assert (other.same_first, other.rank_correlation) == (0, None)
    assert compare_searches(falling, rising, queries, k=4).rank_correlation == -1  # d1, d2, d3
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq2\td1\t1\n")
    judged = compare_searches(falling, rising, queries, tmp_path / "qrels.tsv", k=3).judged
    assert judged is not None
    assert judged.first == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert judged.second == pytest.approx((1 / np.log2(6) + 1 / np.log2(5)) / 2)
    with pytest.raises(EvaluationError, match="There are no queries"):
        compare_searches(falling, rising, [])
    with pytest.raises(EvaluationError, match="None of the 1 queries, such as 'x', is judged"):
        compare_searches(falling, rising, [Query("x", "one")], tmp_path / "qrels.tsv")
