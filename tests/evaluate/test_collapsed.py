"""A model that cannot tell texts apart gets the metrics of chance, and NaN is never a result."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import SbertSearchError
from sbert_search.evaluate.cross_encoders import evaluate_nli, evaluate_rerank
from sbert_search.evaluate.metrics.correlation import GoldScores
from sbert_search.evaluate.report import remarks
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts, evaluate_triplets
from sbert_search.evaluate.tasks import EvalTask, Kind
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.search.options import SearchOptions
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import tiny_cross_encoder

N = 40


class Collapsed(HashingEmbedder):
    """Gives one vector to all texts that ``hit`` selects; the others get vectors of their own."""

    def __init__(self, value: float, hit: Callable[[str], bool]) -> None:
        super().__init__(64)
        self.value, self.hit = value, hit

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        vectors = super().encode_tokens(tokens)
        vectors[[self.hit(text) for text in tokens.texts]] = self.value
        return vectors


def everything(text: str) -> bool:
    return True


def first_side(text: str) -> bool:
    return text.startswith("first")


def second_side(text: str) -> bool:
    return not first_side(text)


BROKEN = pytest.mark.parametrize("value", [0.125, 0.0, math.nan, math.inf])
SIDES = pytest.mark.parametrize("hit", [everything, first_side, second_side])


def write(path: Path, kind: Kind, rows: Sequence[dict[str, Any]]) -> EvalTask:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return EvalTask(name="t", kind=kind, path=Path(path.name))


def score_of(evaluate: Callable[[], float]) -> float:
    """The main score, or NaN if the evaluation is refused."""
    try:
        return evaluate()
    except SbertSearchError:
        return math.nan


def fails(value: float) -> bool:
    return not math.isfinite(value)


@BROKEN
@SIDES
def test_triplets(tmp_path: Path, value: float, hit: Callable[[str], bool]) -> None:
    rows = [
        {"anchor": f"first a{n}", "positive": f"second p{n}", "negative": f"second n{n}"}
        for n in range(N)
    ]
    task = write(tmp_path / "t.jsonl", "triplets", rows)
    embedder = Collapsed(value, hit)
    found = score_of(lambda: evaluate_triplets(task, embedder, data=tmp_path).main_score)
    assert math.isnan(found) if fails(value) else found < 0.8


@BROKEN
@SIDES
def test_similarity(tmp_path: Path, value: float, hit: Callable[[str], bool]) -> None:
    draw = np.random.default_rng(0)
    rows = [
        {"sentence1": f"first a{n}", "sentence2": f"second b{n}", "score": float(score)}
        for n, score in enumerate(draw.uniform(0, 5, N))
    ]
    task = write(tmp_path / "t.jsonl", "sts", rows)
    embedder = Collapsed(value, hit)
    found = score_of(lambda: evaluate_sts(task, embedder, data=tmp_path).main_score)
    assert math.isnan(found) if fails(value) or hit is everything else not found > 0.5


@BROKEN
@SIDES
def test_retrieval(tmp_path: Path, value: float, hit: Callable[[str], bool]) -> None:
    (tmp_path / "t" / "qrels").mkdir(parents=True)
    write(
        tmp_path / "t" / "corpus.jsonl",
        "retrieval",
        [{"_id": f"d{n}", "text": f"second d{n}"} for n in range(N)],
    )
    write(
        tmp_path / "t" / "queries.jsonl",
        "retrieval",
        [{"_id": f"q{n}", "text": f"first q{n}"} for n in range(N)],
    )
    lines = "".join(f"q{n} 0 d{n} 1\n" for n in range(N))
    (tmp_path / "t" / "qrels" / "test.tsv").write_text(lines)
    task = EvalTask(name="t", kind="retrieval", path=Path("t"), main_metric="MRR@10")
    embedder = Collapsed(value, hit)
    dense = SearchOptions(mode="dense")
    found = score_of(
        lambda: evaluate_retrieval(task, embedder, data=tmp_path, search=dense).main_score
    )
    chance = sum(1 / rank for rank in range(1, 11)) / N
    assert math.isnan(found) if fails(value) else not found > 3 * chance


def test_relevant_documents_at_the_top_of_the_collection_are_found_by_chance(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{n}", "text": f"text {n}"} for n in range(N)]
    write(folder / "corpus.jsonl", "retrieval", rows)
    write(folder / "queries.jsonl", "retrieval", [{"_id": f"q{n}", "text": "x"} for n in range(N)])
    (folder / "qrels" / "test.tsv").write_text("".join(f"q{n} 0 d0 1\n" for n in range(N)))
    task = EvalTask(name="t", kind="retrieval", path=Path("t"), main_metric="MRR@10")
    found = evaluate_retrieval(
        task, Collapsed(0.125, everything), data=tmp_path, search=SearchOptions(mode="dense")
    )
    chance = sum(1 / rank for rank in range(1, 11)) / N
    assert found.main_score < 3 * chance
    assert any("all documents found have one score" in each for each in remarks([found]))
    assert found.run is not None
    assert len({hits.index("d0") for hits in map(list, found.run.values())}) > N / 4


def constant_pairs(folder: Path, value: float, labels: tuple[str, ...] = ()) -> Reranker:
    model = tiny_cross_encoder(folder, labels=labels) if labels else tiny_cross_encoder(folder)
    assert isinstance(model, CrossEncoder)
    with torch.no_grad():
        for parameter in model.out.parameters():
            parameter.fill_(value)
    return Reranker(model)


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_rerankers_and_classifiers_of_pairs(tmp_path: Path, value: float) -> None:
    rows = [
        {"query": f"q{q}", "passage": f"p{q} {n}", "label": int(n == 0)}
        for q in range(N)
        for n in range(5)
    ]
    task = write(tmp_path / "graded.jsonl", "rerank", rows)
    reranker = constant_pairs(tmp_path / "one", value)
    found = score_of(lambda: evaluate_rerank(task, reranker, data=tmp_path).main_score)
    chance = sum(1 / rank for rank in range(1, 6)) / 5
    assert math.isnan(found) if fails(value) else found == pytest.approx(chance, abs=0.15)
    labels = ("contradiction", "entailment", "neutral")
    rows = [
        {"premise": f"p{n}", "hypothesis": f"h{n}", "label": labels[n % 3]} for n in range(3 * N)
    ]
    task = write(tmp_path / "nli.jsonl", "nli", rows)
    model = constant_pairs(tmp_path / "three", value, labels)
    found = score_of(lambda: evaluate_nli(task, model, data=tmp_path).main_score)
    assert math.isnan(found) if fails(value) else found == pytest.approx(1 / 3)


@pytest.mark.parametrize("value", [0.0, 1.0, math.nan, math.inf])
def test_correlations_of_scores(value: float) -> None:
    gold = np.arange(3 * N) % 3
    scores = np.full(3 * N, value, np.float32)
    number = GoldScores(gold, [f"{n}" for n in gold]).correlations(scores)
    assert all(map(math.isnan, number.values()))
    scores = (gold == 0).astype(np.float32)
    scores[0] = value
    half = GoldScores(gold, [f"{n}" for n in gold]).correlations(scores)["spearman"]
    assert math.isnan(half) == fails(value)
