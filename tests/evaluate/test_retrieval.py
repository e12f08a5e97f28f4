import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ir_measures
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import (
    ConfigError,
    CorpusError,
    EvaluationError,
    ModelMismatch,
    QueryError,
)
from sbert_search.evaluate.comparison import ExpectedScore, ExpectedScores, judge
from sbert_search.evaluate.manifest import Evaluation, read_evaluation
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.evaluate.report import draw, markdown, remarks, write_reports
from sbert_search.evaluate.retrieval import (
    choose_fusion,
    collection_files,
    evaluate_retrieval,
    name_of,
)
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.index.index import Index
from sbert_search.index.settings import LexicalSettings
from sbert_search.records import Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import Boost, Fusion, SearchMode, SearchOptions
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.labelled.retrieval import read_qrels, read_queries, read_run
from tests.models.tiny import tiny_cross_encoder

DOCUMENTS = {
    "bees": "How bees dance to tell their hive where flowers are",
    "bread": "Baking sour bread with wild yeast",
    "tides": "The moon pulls the sea and makes the tides",
    "moon": "The far side of the moon",
}
QUERIES = {"q1": "why do bees dance", "q2": "moon and tides of the sea", "q3": "zebra stripes"}
QRELS = {("q1", "bees"): 1, ("q2", "tides"): 2, ("q2", "moon"): 1, ("q3", "gone"): 1}

DENSE = SearchOptions(mode="dense")
TASK = EvalTask(name="mini", kind="retrieval", path=Path("mini"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "mini"
    (folder / "qrels").mkdir(parents=True)
    write_rows(folder / "corpus.jsonl", DOCUMENTS)
    write_rows(folder / "queries.jsonl", QUERIES)
    lines = ["query-id\tcorpus-id\tscore"]
    lines += [f"{query}\t{doc}\t{grade}" for (query, doc), grade in QRELS.items()]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def write_rows(path: Path, texts: dict[str, str]) -> None:
    rows = [{"_id": name, "text": text} for name, text in texts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_every_judged_query_counts(data: Path) -> None:
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data, search=DENSE)
    assert result.per_item["nDCG@10"] == {"q1": 1.0, "q2": 1.0, "q3": 0.0}
    assert result.main_score == pytest.approx(2 / 3)
    assert result.scores["recall@100"] == pytest.approx(2 / 3)
    assert result.counts["queries"] == 3
    assert result.counts["judged documents that are not in the index"] == 1
    assert result.manifest["settings"] == {
        "mode": "dense",
        "index": "Flat",
        "metric": "cosine",
        "depth": 1000,
    }
    low, high = result.interval or (1.0, 0.0)
    assert 0 <= low <= 2 / 3 <= high <= 1
    assert set(result.manifest["data_sha256"]) == {
        "mini/corpus.jsonl",
        "mini/queries.jsonl",
        "mini/qrels/test.tsv",
    }


def test_the_run_file_gives_the_scores_of_the_report(data: Path, tmp_path: Path) -> None:
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data)
    report, record, picture, run_file = write_reports([result], tmp_path / "out")
    qrels: dict[str, dict[str, int]] = {}
    for (query, doc), grade in QRELS.items():
        qrels.setdefault(query, {})[doc] = grade
    assert score_run(read_run(run_file), qrels) == result.per_item
    assert json.loads(record.read_text())["per_item"] == result.per_item
    assert "| mini | test | 3 | 0.6667 | 0.0000 to 1.0000 |" in report.read_text()
    assert (
        "union of Student's and the BCa bootstrap interval over the queries." in report.read_text()
    )
    assert picture.read_text() == draw(read_evaluation(record))


def test_a_repeat_gives_the_same_scores_and_the_same_run(data: Path) -> None:
    first, second = (evaluate_retrieval(TASK, HashingEmbedder(), data=data) for _ in range(2))
    assert first.per_item == second.per_item
    assert first.run == second.run


@pytest.mark.parametrize("lexical", [True, False])
def test_without_options_the_search_is_that_of_an_engine_without_options(
    data: Path, tmp_path: Path, *, lexical: bool
) -> None:
    settings = LexicalSettings() if lexical else None
    corpus = data / "mini" / "corpus.jsonl"
    index = Index.build(corpus, out=tmp_path / "i", model=HashingEmbedder(), lexical=settings)
    found = evaluate_retrieval(TASK, HashingEmbedder(), data=data, index=tmp_path / "i")
    run = SearchEngine(index, HashingEmbedder()).run([Query(*q) for q in QUERIES.items()], 1000)
    assert found.run == run
    mode = "hybrid" if lexical else "dense"
    assert found.manifest["settings"]["mode"] == mode
    assert remarks([found]) == [
        f"Search mode: {mode}.",
        "The first hit is relevant for 2 of 3 queries. The worst of the others:\n"
        "- q3 (not in the first 10) zebra stripes",
    ]
    assert remarks([found, found]) == [f"Search mode: {mode}."]


def test_an_index_given_is_searched(data: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "two.jsonl"
    write_rows(corpus, {name: DOCUMENTS[name] for name in ("bees", "bread")})
    Index.build(corpus, out=tmp_path / "index", model=HashingEmbedder())
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data, index=tmp_path / "index")
    assert result.per_item["nDCG@10"] == {"q1": 1.0, "q2": 0.0, "q3": 0.0}
    assert result.counts["judged documents that are not in the index"] == 3
    with pytest.raises(ModelMismatch, match="dim"):
        evaluate_retrieval(TASK, HashingEmbedder(64), data=data, index=tmp_path / "index")


def test_an_unknown_main_metric_is_refused_before_the_work(tmp_path: Path) -> None:
    task = EvalTask(name="mini", kind="retrieval", path=Path("none"), main_metric="nDCG")
    with pytest.raises(EvaluationError, match="'nDCG' is not a metric; use nDCG@k, recall@k"):
        evaluate_retrieval(task, HashingEmbedder(), data=tmp_path)


def test_a_reranker_of_no_documents_is_refused_before_the_work(tmp_path: Path) -> None:
    search = SearchOptions(mode="dense", rerank_depth=0)
    reranker = BestWindow(Reranker(tiny_cross_encoder(tmp_path / "tokens")))
    with pytest.raises(QueryError, match="rerank_depth is 0; it must be at least 1"):
        evaluate_retrieval(TASK, HashingEmbedder(), data=tmp_path, search=search, reranker=reranker)


def test_the_judgements_of_a_split_with_brackets_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "dev[1].tsv").touch()
    task = replace(TASK, split="dev[1]")
    assert collection_files(task, tmp_path) == [tmp_path / "qrels" / "dev[1].tsv"]


def test_bad_rows_stop_or_are_counted(data: Path) -> None:
    write_rows(data / "mini" / "corpus.jsonl", DOCUMENTS | {"blank": " "})
    with pytest.raises(CorpusError, match=r"corpus\.jsonl:5"):
        evaluate_retrieval(TASK, HashingEmbedder(), data=data)
    lenient = EvalTask(name="mini", kind="retrieval", path=Path("mini"), on_error="skip")
    result = evaluate_retrieval(lenient, HashingEmbedder(), data=data)
    assert result.counts["documents"] == 4
    assert result.counts["documents left out (bad rows)"] == 1


def test_what_cannot_be_evaluated_is_named(data: Path) -> None:
    embedder = HashingEmbedder()
    elsewhere = EvalTask(name="mini", kind="retrieval", path=Path("nowhere"))
    with pytest.raises(EvaluationError, match=r"no folder .*nowhere; point data"):
        evaluate_retrieval(elsewhere, embedder, data=data)
    dev = EvalTask(name="mini", kind="retrieval", path=Path("mini"), split="dev")
    with pytest.raises(CorpusError, match="existing splits: test"):
        evaluate_retrieval(dev, embedder, data=data)
    revised = EvalTask(
        name="mini", kind="retrieval", path=Path("mini"), sha256={"mini/corpus.jsonl": "0" * 64}
    )
    with pytest.raises(EvaluationError, match="different files cannot be compared"):
        evaluate_retrieval(revised, embedder, data=data)
    write_rows(data / "mini" / "queries.jsonl", {"q1": "why do bees dance"})
    with pytest.raises(EvaluationError, match=r"2 of 3 judged queries .* first is 'q2'"):
        evaluate_retrieval(TASK, embedder, data=data)
    (data / "mini" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(CorpusError, match="holds no judgements"):
        evaluate_retrieval(TASK, embedder, data=data)


def test_expected_scores_are_of_weights_and_tasks(data: Path) -> None:
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data)
    weights = HashingEmbedder().identity.weights_sha256
    score = ExpectedScore(value=0.67, tolerance=0.01)
    assert judge(
        result, ExpectedScores(model="m", weights_sha256=weights, scores={"mini": score})
    ).ok
    with pytest.raises(EvaluationError, match="There is no expected score of the task mini; known"):
        judge(result, ExpectedScores(model="m", weights_sha256=weights, scores={"maxi": score}))
    with pytest.raises(EvaluationError, match="expected scores are of m with weights sha256"):
        judge(result, ExpectedScores(model="m", weights_sha256="0" * 64, scores={"mini": score}))


def test_every_mode_is_searched_and_named(data: Path) -> None:
    results = {
        mode: evaluate_retrieval(
            TASK, HashingEmbedder(), data=data, search=SearchOptions(mode=mode)
        )
        for mode in ("dense", "lexical", "hybrid")
    }
    for mode, result in results.items():
        assert result.manifest["settings"]["mode"] == mode
        assert result.run is not None
        assert f", {mode}" in markdown([result]).partition("\n")[0]
    assert "k1" in results["lexical"].manifest["settings"]
    assert "fusion dense_weight" in results["hybrid"].manifest["settings"]
    assert results["lexical"].run != results["dense"].run


def assert_split_by_score(before: Mapping[str, float], first: list[str], rest: list[str]) -> None:
    """The first documents are the best by score, of which several may be equal, then the others."""
    assert sorted([*first, *rest]) == sorted(before)
    scores = sorted(before.values(), reverse=True)
    assert sorted((before[doc] for doc in first), reverse=True) == scores[: len(first)]
    assert [before[doc] for doc in rest] == scores[len(first) :]


def test_a_reranker_orders_the_first_documents_and_leaves_the_others_behind(
    data: Path, tmp_path: Path
) -> None:
    reranker = BestWindow(Reranker(tiny_cross_encoder(tmp_path / "tokenizer")))
    plain = evaluate_retrieval(TASK, HashingEmbedder(), data=data)
    result = evaluate_retrieval(
        TASK,
        HashingEmbedder(),
        data=data,
        search=SearchOptions(rerank_depth=2),
        reranker=reranker,
    )
    assert plain.run is not None
    assert result.run is not None
    for query, hits in result.run.items():
        before, after = plain.run[query], list(hits)
        assert_split_by_score(before, after[:2], after[2:])
        scores = reranker.predict([(QUERIES[query], DOCUMENTS[doc]) for doc in after[:2]])
        assert scores[0] >= scores[1]
    assert result.manifest["settings"]["rerank depth"] == 2
    assert "reranked by" in markdown([result]).partition("\n")[0]


def test_the_reranker_adds_no_documents_beyond_the_depth_of_the_task(
    data: Path, tmp_path: Path
) -> None:
    reranker = BestWindow(Reranker(tiny_cross_encoder(tmp_path / "tokenizer")))
    shallow = replace(TASK, depth=1)
    plain = evaluate_retrieval(shallow, HashingEmbedder(), data=data)
    result = evaluate_retrieval(shallow, HashingEmbedder(), data=data, reranker=reranker)
    assert plain.run is not None
    assert result.run is not None
    assert result.run.keys() == plain.run.keys()
    assert [[*hits] for hits in result.run.values()] == [[*hits] for hits in plain.run.values()]
    assert result.manifest["settings"]["rerank depth"] == 1


def test_options_of_the_search_are_recorded(data: Path) -> None:
    rows = [{"_id": name, "text": DOCUMENTS[name], "year": len(name)} for name in DOCUMENTS]
    corpus = data / "mini" / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    search = SearchOptions(
        mode="dense",
        where="year > 0",
        min_score=-1,
        offset=1,
        syntax="plain",
        fuzzy=1,
        boost=Boost("year", 0.5, "linear"),
    )
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data, search=search)
    plain = evaluate_retrieval(TASK, HashingEmbedder(), data=data, search=DENSE)
    boost = {"column": "year", "weight": 0.5, "kind": "linear", "half_life_days": None, "now": None}
    assert result.manifest["settings"] == {
        **plain.manifest["settings"],
        "where": "year > 0",
        "min score": -1,
        "offset": 1,
        "syntax": "plain",
        "fuzzy": 1,
        "boost": [boost],
    }


ARGUMENTS = {
    "a1": "School uniforms save families money and time.",
    "a1-con": "Uniforms cost families more, since children need ordinary clothes too.",
    "a2": "Night trains should return because they replace flights.",
    "a2-con": "Night trains are too slow and too dear to replace flights.",
    "3": "Windows of old houses let in cold air.",
}


@pytest.fixture
def argued(tmp_path: Path) -> Path:
    """Two queries are documents; the third shares only its id with a document."""
    folder = tmp_path / "data" / "argued"
    (folder / "qrels").mkdir(parents=True)
    write_rows(folder / "corpus.jsonl", ARGUMENTS)
    asked = {"a1": ARGUMENTS["a1"].upper(), "a2": ARGUMENTS["a2"], "3": "cold air windows"}
    write_rows(folder / "queries.jsonl", asked)
    lines = "a1 0 a1-con 1\na2 0 a2-con 1\n3 0 3 1\n"
    (folder / "qrels" / "test.tsv").write_text(lines)
    return tmp_path / "data"


def outside(result: Evaluation, folder: Path, *, ignore: bool) -> float:
    """The nDCG@10 that ir-measures gives to a run after BEIR's rule."""
    assert result.run is not None
    run = {
        query: {d: s for d, s in hits.items() if d != query or not ignore}
        for query, hits in result.run.items()
    }
    found = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], read_qrels(folder), run)
    return float(found[ir_measures.nDCG @ 10])


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("reranked", [False, True])
def test_a_query_does_not_find_its_own_document(
    argued: Path, tmp_path: Path, mode: SearchMode, *, reranked: bool
) -> None:
    reranker = BestWindow(Reranker(tiny_cross_encoder(tmp_path / "tokens"))) if reranked else None
    search = SearchOptions(mode=mode, rerank_depth=2)
    task, results = EvalTask(name="argued", kind="retrieval", path=Path("argued")), {}
    for ignore in (None, True, False):
        results[ignore] = evaluate_retrieval(
            replace(task, ignore_identical_ids=ignore),
            HashingEmbedder(),
            data=argued,
            search=search,
            reranker=reranker,
        )
    for ignore, left_out in ((None, {"a1", "a2"}), (True, {"a1", "a2", "3"}), (False, set())):
        result = results[ignore]
        assert result.run is not None
        assert {query for query, hits in result.run.items() if query not in hits} == left_out
        assert result.counts.get("queries whose own document is left out", 0) == len(left_out)
        assert len(remarks([result])) == 2 + bool(left_out)
        assert result.main_score == pytest.approx(
            outside(result, argued / "argued", ignore=bool(ignore))
        )
    if not reranked:
        assert results[None].per_item["nDCG@10"] == {"a1": 1.0, "a2": 1.0, "3": 1.0}
        assert results[False].per_item["nDCG@10"]["a1"] < 1
        shallow = evaluate_retrieval(
            replace(task, depth=1), HashingEmbedder(), data=argued, search=search
        )
        assert shallow.run is not None
        assert [[*hits] for hits in shallow.run.values()] == [["a1-con"], ["a2-con"], ["3"]]
    else:
        plain = evaluate_retrieval(task, HashingEmbedder(), data=argued, search=search)
        assert plain.run is not None
        for query, hits in (results[None].run or {}).items():
            assert_split_by_score(plain.run[query], list(hits)[:2], list(hits)[2:])


def test_an_own_document_that_is_judged_relevant_counts(argued: Path) -> None:
    (argued / "argued" / "qrels" / "test.tsv").write_text("a1 0 a1 1\na2 0 a2 0\n")
    task = EvalTask(name="argued", kind="retrieval", path=Path("argued"))
    result = evaluate_retrieval(task, HashingEmbedder(), data=argued)
    assert result.per_item["nDCG@10"]["a1"] == 1.0
    assert result.counts["queries whose own document is left out"] == 1


def test_choosing_a_fusion_leaves_own_documents_out(argued: Path, tmp_path: Path) -> None:
    folder = argued / "argued"
    index = Index.build(folder, out=tmp_path / "i", model=HashingEmbedder())
    queries, qrels = read_queries(folder), read_qrels(folder)
    choice = choose_fusion(index, HashingEmbedder(), queries, qrels, folds=2)
    assert max(choice.scores.values()) == 1.0
    words = name_of(Fusion(dense_weight=0.0))
    lexical = SearchOptions(mode="lexical")
    task = EvalTask(name="argued", kind="retrieval", path=Path("argued"))
    alone = evaluate_retrieval(task, HashingEmbedder(), data=argued, search=lexical)
    assert choice.scores[words] == pytest.approx(alone.main_score)


def test_other_kinds_of_tasks_have_no_own_documents() -> None:
    with pytest.raises(ConfigError, match="ignore_identical_ids is for tasks of the kind"):
        EvalTask(name="t", kind="sts", path=Path("t"), ignore_identical_ids=True)


@pytest.mark.parametrize("values", [[0.1], [0.1] * 3, [1.0] * 50])
def test_items_that_are_alike_have_no_interval(data: Path, values: list[float]) -> None:
    result = evaluate_retrieval(TASK, HashingEmbedder(), data=data)
    alike = replace(result, per_item={"nDCG@10": {str(n): v for n, v in enumerate(values)}})
    assert alike.interval is None
    assert json.loads(alike.to_json())["interval"] is None
    assert "| mini | test | 3 | 0.6667 | - |" in markdown([alike])


def test_the_seed_is_that_of_the_interval(data: Path) -> None:
    """Of few values Student's interval is the longer one; of these, the bootstrap's."""
    values = {f"q{n}": (n / 100) ** 6 for n in range(100)}
    for seed in (0, 5):
        result = evaluate_retrieval(TASK, HashingEmbedder(), data=data, seed=seed)
        result = replace(result, per_item={"nDCG@10": values})
        assert result.interval == mean_interval([*values.values()], within=(0, 1), seed=seed)
    assert result.interval != mean_interval([*values.values()], within=(0, 1), seed=0)
