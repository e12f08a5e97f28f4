"""Published weights reach the scores that are expected of them, on the real data sets."""

from pathlib import Path

import pytest

from sbert_search.embed.embedder import open_embedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.evaluate.comparison import judge, load_expected
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import load_task
from sbert_search.search.options import SearchOptions

EVAL = Path(__file__).parents[2] / "eval"
EXPECTED = load_expected(EVAL / "expected" / "all-MiniLM-L6-v2.toml")


@pytest.fixture(scope="module")
def embedder() -> TextEmbedder:
    return open_embedder(None, device="cpu", precision="fp32")


def check(name: str, embedder: TextEmbedder, data: Path) -> None:
    task = load_task(EVAL / "tasks" / f"{name}.toml")
    if task.kind == "sts":
        evaluation = evaluate_sts(task, embedder, data=data)
    else:
        dense = SearchOptions(mode="dense")
        evaluation = evaluate_retrieval(task, embedder, data=data, search=dense)
    verdict = judge(evaluation, EXPECTED)
    assert verdict.ok, verdict


@pytest.mark.thorough
def test_stsb(embedder: TextEmbedder, real_data: Path) -> None:
    check("stsb", embedder, real_data)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(EXPECTED.scores) - {"stsb"}))
def test_every_other_task(name: str, embedder: TextEmbedder, real_data: Path) -> None:
    check(name, embedder, real_data)
