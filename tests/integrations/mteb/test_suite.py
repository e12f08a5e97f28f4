"""``mteb.mock_run`` passes for all protocols, and the scores are those of `eval retrieval`."""

from __future__ import annotations

import json
from pathlib import Path

import mteb
import pytest
from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.integrations.mteb import (
    FolderTask,
    SbertSearchCrossEncoder,
    SbertSearchEncoder,
    SbertSearchModel,
)
from sbert_search.integrations.mteb.tasks import open_tasks
from sbert_search.search.options import SearchMode, SearchOptions
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import tiny_cross_encoder

# MTEB's metrics divide by zero and name deprecated functions of its libraries on tiny tasks.
pytestmark = pytest.mark.filterwarnings("ignore")

MODES: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Reranker:
    base = tmp_path_factory.mktemp("model")
    tiny_cross_encoder(base / "tokens").save(base / "saved")
    return Reranker(base / "saved", device="cpu", precision="fp32")


def _passes(model: EncoderProtocol | SearchProtocol) -> int:
    """Require that every mock task of the model's protocols ran, and return their number."""
    results = mteb.mock_run(model)
    ran = {name: result for name, result in results.items() if result is not None}
    wrong = {n: r for n, r in ran.items() if not isinstance(r, mteb.TaskResult)}
    assert not wrong, results.to_markdown()
    assert results.all_passed
    return len(ran)


# MTEB gives tasks without candidates to cross-encoders too, and refuses to run them.
UNRANKED = {
    "MockMultilingualRetrievalTask",
    "MockMultilingualInstructionRetrieval",
    "MockRetrievalTask",
    "MockInstructionRetrieval",
    "MockRetrievalDialogTask",
}


def test_the_encoder_passes() -> None:
    model = SbertSearchEncoder("hashing")
    assert isinstance(model, EncoderProtocol)
    assert _passes(model) > 20


def test_the_cross_encoder_passes(reranker: Reranker) -> None:
    model = SbertSearchCrossEncoder(reranker)
    assert isinstance(model, CrossEncoderProtocol)
    ran = {name: result for name, result in mteb.mock_run(model).items() if result is not None}
    failed = {n: r for n, r in ran.items() if not isinstance(r, mteb.TaskResult)}
    assert failed.keys() == UNRANKED
    for result in failed.values():
        assert "CrossEncoder search requires top_ranked documents" in result.exception
    assert len(ran) - len(failed) >= 4


@pytest.mark.parametrize("mode", MODES)
def test_the_search_model_passes(mode: SearchMode) -> None:
    model = SbertSearchModel("hashing", options=SearchOptions(mode=mode))
    assert isinstance(model, SearchProtocol)
    assert _passes(model) > 5
    assert model.mteb_model_meta.name == f"sbert-search/hashing-{mode}"


def test_the_reranked_search_model_passes(reranker: Reranker) -> None:
    model = SbertSearchModel("hashing", reranker=reranker)
    assert _passes(model) > 5
    assert model.mteb_model_meta.name == "sbert-search/hashing-dense-rerank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder of 60 documents, 12 queries and grades from 0 to 2."""
    import random

    rng, words = random.Random(0), [f"word{n}" for n in range(40)]
    base = tmp_path_factory.mktemp("beir") / "tiny"
    (base / "qrels").mkdir(parents=True)
    texts = {f"d{n}": " ".join(rng.choices(words, k=12)) for n in range(60)}
    rows = [{"_id": n, "title": f"title {n}", "text": text} for n, text in texts.items()]
    (base / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {f"q{n}": " ".join(rng.choices(words, k=3)) for n in range(12)}
    lines = [json.dumps({"_id": n, "text": text}) + "\n" for n, text in asked.items()]
    (base / "queries.jsonl").write_text("".join(lines))
    judged = [
        f"{query}\t{document}\t{rng.randint(0, 2)}\n"
        for query in asked
        for document in rng.sample(sorted(texts), 8)
    ]
    header = "query-id\tcorpus-id\tscore\n"
    (base / "qrels" / "test.tsv").write_text(header + "".join(judged))
    return base


@pytest.fixture(scope="module", params=["a model", "ties"])
def embedder(request: pytest.FixtureRequest) -> Embedder | HashingEmbedder:
    return Embedder(device="cpu") if request.param == "a model" else HashingEmbedder()


@pytest.mark.parametrize("mode", MODES)
def test_scores_are_those_of_eval_retrieval(
    folder: Path, mode: SearchMode, embedder: Embedder | HashingEmbedder
) -> None:
    options = SearchOptions(mode=mode)
    task = EvalTask(name="tiny", kind="retrieval", path=Path(folder.name), split="test")
    ours = evaluate_retrieval(task, embedder, data=folder.parent, search=options).scores
    model = SbertSearchModel(embedder, options=options)
    (result,) = mteb.evaluate(model, FolderTask(folder), cache=None).task_results
    (theirs,) = result.scores["test"]
    for mine, yours in (("nDCG@10", "ndcg_at_10"), ("recall@100", "recall_at_100")):
        assert ours[mine] == pytest.approx(theirs[yours], abs=1e-4)
    assert 0 < theirs["ndcg_at_10"] < 1


def test_the_encoder_gives_the_scores_of_dense_search(folder: Path) -> None:
    model = Embedder(device="cpu")  # its scores have no ties
    encoder = mteb.evaluate(SbertSearchEncoder(model), FolderTask(folder), cache=None)
    search = mteb.evaluate(SbertSearchModel(model), FolderTask(folder), cache=None)
    scores = [each.task_results[0].get_score() for each in (encoder, search)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_own_documents_are_left_out_as_in_eval_retrieval(tmp_path: Path, mode: SearchMode) -> None:
    base = tmp_path / "own"
    (base / "qrels").mkdir(parents=True)
    texts = {"a": "tides of the sea", "b": "high tides", "c": "dunes of sand", "d": "sand storm"}
    asked = {"a": texts["a"], "c": texts["c"], "d": "storm of sand"}
    for name, rows in (("corpus", texts), ("queries", asked)):
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in rows.items()]
        (base / f"{name}.jsonl").write_text("".join(lines))
    (base / "qrels" / "test.tsv").write_text("a 0 b 1\nc 0 d 1\nd 0 d 2\n")
    task = EvalTask(name="own", kind="retrieval", path=Path("own"))
    options = SearchOptions(mode=mode)
    ours = evaluate_retrieval(task, HashingEmbedder(), data=tmp_path, search=options).scores
    model = SbertSearchModel(HashingEmbedder(), options=options)
    (result,) = mteb.evaluate(model, FolderTask(base), cache=None).task_results
    assert result.get_score() == pytest.approx(ours["nDCG@10"], abs=1e-4)
    assert ours["nDCG@10"] == 1.0


def test_tasks_are_found_by_name_and_path(folder: Path) -> None:
    named, local = open_tasks(["NFCorpus", str(folder)])
    assert named.metadata.name == "NFCorpus"
    assert local.metadata.name == "tiny"
    with pytest.raises(EvaluationError, match="'NFCorpusX' is neither"):
        open_tasks(["NFCorpusX"])
    with pytest.raises(EvaluationError, match="call index first"):
        SbertSearchModel("hashing").search({}, task_metadata=local.metadata, top_k=1)
