import json
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.evaluate.judged import evaluate_run
from sbert_search.evaluate.report import write_reports
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.index.index import Index
from sbert_search.models.loading.publish import read_scores
from tests.cli.process import sbert_search
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder

PAIRS = [("a dog runs", "a dog ran", 4.0), ("a dog", "the moon", 0.5), ("one two", "one two", 5)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a file of pairs and a BEIR folder."""
    pairs = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in PAIRS]
    write_lines(tmp_path / "pairs.jsonl", pairs)
    beir = tmp_path / "mini"
    (beir / "qrels").mkdir(parents=True)
    texts = {"1": "how bees dance", "2": "sour bread", "3": "the far side of the moon"}
    write_lines(
        beir / "corpus.jsonl", [{"_id": name, "text": text} for name, text in texts.items()]
    )
    write_lines(beir / "queries.jsonl", [{"_id": "q", "text": "the moon"}])
    (beir / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t3\t1\n")
    return tmp_path


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_retrieval_reports_scores_run_and_manifest(data: Path) -> None:
    done = sbert_search(
        "eval", "retrieval", data / "mini", "--model", "hashing", "--out", "out", cwd=data
    )
    assert done.code == 0, done.err
    assert "1.0000" in done.out
    assert sorted(path.name for path in (data / "out").iterdir()) == [
        "mini.json",
        "mini.svg",
        "mini.trec",
        "retrieval.md",
    ]
    record = json.loads((data / "out" / "mini.json").read_text())
    assert record["manifest"]["model"]["name"] == "hashing"
    assert record["per_item"]["nDCG@10"] == {"q": 1.0}


def test_retrieval_in_an_index_takes_the_model_of_the_index(data: Path) -> None:
    Index.build(data / "mini" / "corpus.jsonl", out=data / "mini.index", model="hashing:8")
    (data / "sbert-search.toml").write_text('model = "hashing:4"\n')
    line = ("eval", "retrieval", data / "mini", "--index", "mini.index", "--json")
    done = sbert_search(*line, cwd=data)
    assert done.code == 0, done.err
    refused = sbert_search(*line, "--model", "hashing:4", cwd=data)
    assert refused.code == 1
    assert "hashing:4 is another model" in refused.err
    (data / "sbert-search.toml").write_text('[eval.retrieval]\nmodel = "hashing:4"\n')
    assert "hashing:4 is another model" in sbert_search(*line, cwd=data).err
    vectors = np.eye(3, dtype=np.float32)
    Index.from_vectors(vectors, ids=["1", "2", "3"], out=data / "vectors.index")
    none = sbert_search("eval", "retrieval", data / "mini", "--index", "vectors.index", cwd=data)
    assert none.code == 1
    assert "vectors.index holds vectors that were given without a model" in none.err


def test_retrieval_takes_options_of_the_search_and_names_absent_documents(data: Path) -> None:
    line = ("eval", "retrieval", data / "mini", "--model", "hashing", "--mode", "lexical")
    (data / "mini" / "queries.jsonl").write_text('{"_id": "q", "text": "the mooon"}\n')
    for more, found in ((), False), (("--fuzzy", "1"), True):
        done = sbert_search(*line, *more, cwd=data)
        assert ("1.0000" in done.out, done.code) == (found, 0), done.err
    qrels = data / "mini" / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text() + "q\tgone\t1\nq\tbad\t0\n")
    done = sbert_search(*line, "--where", "doc_id <> '3'", "--boost", "n:linear:1", cwd=data)
    assert "Unknown metadata column 'n'" in done.err
    assert (
        "1 of 1 queries have relevant documents that are not in the index, 1 in all: gone; their "
        "scores are lower for it." in done.err
    )
    qrels.write_text(qrels.read_text() + "q\t3\t1\nq\t2\t1\n")
    done = sbert_search(*line, "--where", "doc_id NOT IN ('2', '3')", "-q", cwd=data)
    assert "documents that the filter leaves out, 2 in all: 3, 2; their scores" in done.err


def test_retrieval_names_the_pages_of_judged_files(data: Path) -> None:
    index = Index.build(
        [
            {"_id": f"moon.pdf#page={n}", "text": "moon", "path": "moon.pdf", "page": n}
            for n in (2, 3)
        ],
        model="hashing",
    )
    (data / "mini" / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq\tmoon.pdf\t1\n"
    )
    (data / "mini" / "queries.jsonl").write_text('{"_id": "q", "text": "moon"}\n')
    index.backup(data / "pages.index")
    done = sbert_search("eval", "retrieval", data / "mini", "--index", data / "pages.index")
    pages = "'moon.pdf#page=2' ... 'moon.pdf#page=3'."
    assert f"scores are lower for it. Each page of it is a document: {pages} To find" in done.err
    assert ("0.0000" in done.out, "pass --group-by path." in done.err) == (True, True)
    line = ("eval", "retrieval", data / "mini", "--index", data / "pages.index", "--group-by")
    done = sbert_search(*line, "path", "--json", "-q")
    assert (done.code, done.err, done.records[0]["score"]) == (0, "", 1.0)
    assert done.records[0]["counts"]["judged documents that are not in the index"] == 0
    done = sbert_search(*line, "path", "--where", "page > 3")
    assert "documents that the filter leaves out, 1 in all: moon.pdf; their scores" in done.err
    assert "Unknown metadata column 'paht'" in sbert_search(*line, "paht").err
    (data / "mini" / "qrels" / "test.tsv").write_text("q 0 moon 1\n")
    done = sbert_search(*line, "path")
    assert "documents that are not in the index, 1 in all: moon; their scores" in done.err
    pairs = ("eval", "retrieval", data / "pairs.jsonl", "--model", "hashing", "--group-by", "path")
    assert "group_by needs judgements of groups, in a folder" in sbert_search(*pairs).err


def test_examples_of_fewer_tokens_than_possible_are_wrong_usage() -> None:
    done = sbert_search("eval", "mlm", "text.txt", "--model", "m", "--max-len", "7")
    assert (done.code, "7 is not in the range x>=8" in done.err) == (2, True), done.err


def test_json_has_one_line_a_task(data: Path) -> None:
    task = data / "mini.toml"
    task.write_text('kind = "sts"\npath = "pairs.jsonl"\nmain_metric = "pearson"\n')
    done = sbert_search(
        *("eval", "sts", task, data / "pairs.jsonl", "--data", data),
        *("--model", "hashing", "--json", "--quiet"),
    )
    assert (done.code, done.err) == (0, "")
    first, second = done.records
    assert (first["task"], first["main_metric"]) == ("mini", "pearson")
    assert first["score"] == first["scores"]["pearson"] == second["scores"]["pearson"]
    assert second["counts"]["pairs"] == 3
    (data / "scores.json").write_text(done.out)
    for measured, record in zip(read_scores([data / "scores.json"]), done.records, strict=True):
        assert measured.model_sha256 == HashingEmbedder().identity.weights_sha256
        assert (measured.task, measured.kind, measured.split) == (record["task"], "sts", "test")


def test_data_of_one_name_get_reports_of_their_own(data: Path) -> None:
    for name in ("a", "b"):
        (data / name).mkdir()
        (data / name / "pairs.jsonl").write_text((data / "pairs.jsonl").read_text())
    done = sbert_search(
        *("eval", "sts", data / "a" / "pairs.jsonl", data / "b" / "pairs.jsonl"),
        *("--model", "hashing", "--out", data / "out", "--quiet"),
    )
    assert done.code == 0, done.err
    names = {path.name for path in (data / "out").iterdir()}
    assert names == {f"{n}-pairs.{end}" for n in "ab" for end in ("json", "svg")} | {"sts.md"}
    assert "a-pairs" in done.out
    assert "b-pairs" in done.out


def test_a_split_that_has_no_effect_is_refused(data: Path) -> None:
    (data / "mini.toml").write_text('kind = "sts"\npath = "pairs.jsonl"\nsplit = "dev"\n')
    line = ("eval", "sts", data / "mini.toml", "--data", data, "--model", "hashing", "--json")
    refused = sbert_search(*line, "--split", "test")
    assert (refused.code, refused.out) == (2, "")
    assert "mini.toml, which is a task of the split dev; leave it out." in refused.err
    (data / "sbert-search.toml").write_text('[eval.sts]\nsplit = "test"\n')  # a default for folders
    for more in ((), ("--split", "dev")):
        done = sbert_search(*line, *more, cwd=data)
        assert (done.code, done.records[0]["split"]) == (0, "dev"), done.err


def test_a_missed_expectation_exits_with_1(data: Path) -> None:
    weights = HashingEmbedder().identity.weights_sha256
    expected = data / "expected.toml"
    command = ("eval", "sts", data / "pairs.jsonl", "--model", "hashing", "--expect", expected)
    for value, code, verdict in ((1.0, 0, "OK"), (0.5, 1, "FAIL")):
        expected.write_text(
            f'model = "hashing"\nweights_sha256 = "{weights}"\n'
            f"[scores.pairs]\nvalue = {value}\ntolerance = 0.001\n"
        )
        done = sbert_search(*command)
        assert (done.code, verdict in done.err) == (code, True), done.err


def test_a_suite_lists_what_is_absent(data: Path) -> None:
    suite = data / "suite.toml"
    suite.write_text(
        'title = "Both"\ntasks = ["one", "two"]\naverage = true\n[absent]\ntwo = "held out"\n'
    )
    shipped = data / "eval" / "tasks"
    shipped.mkdir(parents=True)
    (shipped / "one.toml").write_text('kind = "sts"\npath = "pairs.jsonl"\n')
    done = sbert_search(
        *("eval", "sts", "--suite", suite, "--data", data, "--model", "hashing"), cwd=data
    )
    assert done.code == 0, done.err
    assert "absent" in done.out
    assert "held out" in done.out
    assert "mean" not in done.out


def test_a_suite_may_name_its_tasks_by_path(data: Path) -> None:
    shifted = [
        {"sentence1": a, "sentence2": b, "score": score}
        for (a, b, _), (*_, score) in zip(PAIRS, [*PAIRS[1:], PAIRS[0]], strict=True)
    ]
    for name in ("a", "b"):
        (data / name).mkdir()
    (data / "a" / "pairs.jsonl").write_text((data / "pairs.jsonl").read_text())
    write_lines(data / "b" / "pairs.jsonl", shifted)
    suite = data / "suite.toml"
    suite.write_text(
        'title = "Both"\ntasks = ["a/pairs.jsonl", "b/pairs.jsonl"]\naverage = true\n'
        'beside = ["pairs.jsonl"]\n'
    )
    done = sbert_search(
        *("eval", "sts", "--suite", suite, "--model", "hashing", "--out", "out"), cwd=data
    )
    assert done.code == 0, done.err
    # The similarities have the ranks 2, 1, 3, and the shifted scores 1, 3, 2: 1 - 6 * 6 / (3 * 8).
    report = (data / "out" / "sts.md").read_text()
    assert "| a-pairs | test | 3 | 100.00 |" in report
    assert "| b-pairs | test | 3 | -50.00 |" in report
    assert "| mean |  |  | 25.00 |" in report


@pytest.mark.parametrize("options", [(), ("--out", "reports")])
def test_a_suite_without_a_task_to_run_is_refused(data: Path, options: tuple[str, ...]) -> None:
    suite = data / "suite.toml"
    suite.write_text('title = "None"\ntasks = ["two"]\n[absent]\ntwo = "held out"\n')
    done = sbert_search("eval", "sts", "--suite", suite, "--model", "hashing", *options, cwd=data)
    assert (done.code, "suite.toml: no task can be run" in done.err) == (1, True), done.err


def test_wrong_usage_is_named(data: Path) -> None:
    neither = sbert_search("eval", "sts", "--model", "hashing")
    assert neither.code == 2
    assert "Name at least one TASK or DATA, or a --suite" in neither.err
    gone = sbert_search("eval", "sts", "gone", "--model", "hashing", cwd=data)
    assert (gone.code, "gone is not a file, a folder or a shipped task" in gone.err) == (1, True)
    wrong_kind = sbert_search("eval", "sts", data / "mini", "--model", "hashing")
    assert (wrong_kind.code, "not a file of scored pairs" in wrong_kind.err) == (1, True)


def test_long_settings_are_shortened(data: Path) -> None:
    """A comparison with a run in hybrid mode must not print every stop word."""
    for mode in ("dense", "hybrid"):
        options = ("--model", "hashing", "--mode", mode, "--out", mode)
        done = sbert_search("eval", "retrieval", "mini", *options, cwd=data)
        assert done.code == 0, done.err
    table = sbert_search("eval", "compare", "dense", "hybrid", cwd=data)
    assert "stop_words: None (A), ['a', 'an', 'and', 'are', 'as' and 29 more] (B)" in table.out


def test_two_runs_are_compared(data: Path) -> None:
    for out, dim in (("a", 384), ("b", 64)):
        embedder = HashingEmbedder(dim)
        pairs = find_task("sts", str(data / "pairs.jsonl"))
        collection = find_task("retrieval", str(data / "mini"))
        write_reports([evaluate_sts(pairs, embedder, data=data)], data / out)
        write_reports([evaluate_retrieval(collection, embedder, data=data)], data / out)
    table = sbert_search("eval", "compare", "a", "b", cwd=data)
    assert table.code == 0, table.err
    assert "dim: 384 (A), 64 (B)" in table.out
    assert "mini nDCG@10: no difference shown (only 1 compared; fewer" in table.out
    assert "pairs spearman: no difference shown (only " in table.out
    alone = ("a/mini.json", "b/mini.json", "--metric", "MAP", "--metric", "MRR@10", "--json")
    done = sbert_search("eval", "compare", *alone, cwd=data)
    assert [line["metric"] for line in done.records] == ["MAP", "MRR@10"]
    assert done.records[0]["items"] == [{"item": "q", "first": 1.0, "second": 1.0, "gain": 0.0}]
    sbert_search("eval", "compare", "a", "b", "--svg", "gains", "--quiet", cwd=data)
    pictures = sorted(path.name for path in (data / "gains").iterdir())
    assert pictures == ["mini-nDCG-10.svg", "pairs-spearman.svg"]
    mixed = sbert_search("eval", "compare", "a", "b/mini.json", cwd=data)
    assert (mixed.code, "Only one of the two runs has pairs" in mixed.err) == (1, True)


def test_changes_show_queries_while_their_file_is_the_same(tmp_path: Path) -> None:
    rows = "query,positive\nwho mills the Weiß,a stone turns\nbread,bread is baked\n"
    (tmp_path / "pairs.csv").write_text(rows, encoding="cp1252")
    for name, mode in (("a", "dense"), ("b", "lexical")):
        options: tuple[str, ...]
        options = ("--model", "hashing", "--mode", mode, "--out", name, "--quiet")
        wrong = sbert_search("eval", "retrieval", "pairs.csv", *options, cwd=tmp_path)
        assert "name its encoding, such as --encoding cp1252" in wrong.err
        options = (*options, "--encoding", "cp1252")
        done = sbert_search("eval", "retrieval", "pairs.csv", *options, cwd=tmp_path)
        assert done.code == 0, done.err
        rank = "at 2" if mode == "dense" else "not in the first 10"
        assert "first hit is relevant for 1 of 2 queries. The worst" in done.out
        assert f"\n- 1 ({rank}) who mills the Weiß\n" in done.out
    compare = ("eval", "compare", "a", "b", "--metric", "recall@100")
    assert (
        "most:\n    1 (1.000, 0.000) who mills the Weiß\n"
        in sbert_search(*compare, cwd=tmp_path).out
    )
    (tmp_path / "pairs.csv").write_text(rows + "yeast,dough rises\n")
    assert "most: 1 (1.000, 0.000)\n" in sbert_search(*compare, cwd=tmp_path).out
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1.1\t1\n")
    judged = evaluate_run(tmp_path / "a" / "pairs.trec", tmp_path / "qrels.tsv").to_json()
    (tmp_path / "run.json").write_text(judged)
    assert sbert_search("eval", "compare", "run.json", "run.json", cwd=tmp_path).code == 0


@pytest.mark.thorough
def test_cross_encoders_are_evaluated_in_every_role(data: Path) -> None:
    tiny_cross_encoder(data / "tokenizer").save(data / "reranker")
    graded = [{"question": "the dog", "answer": "a dog", "label": 1}]
    write_lines(data / "graded.jsonl", [*graded, {**graded[0], "answer": "the sun", "label": 0}])
    by_model = ("--model", "reranker", "--json", "--quiet")
    done = sbert_search("eval", "rerank", "graded.jsonl", *by_model, cwd=data)
    assert done.code == 0, done.err
    assert done.records[0]["score"] in (0.5, 1.0)
    found = sbert_search(
        *("eval", "retrieval", "mini", "--mode", "hybrid", "--rerank", "reranker"),
        *("--model", "hashing", "--rerank-depth", "2", "--json", "--quiet"),
        cwd=data,
    )
    assert found.code == 0, found.err
    assert found.records[0]["settings"]["reranker"] == "reranker"
    tiny_bi_encoder(data / "other").save(data / "model")
    onnx = sbert_search(
        *("eval", "retrieval", "mini", "--rerank", "reranker", "--model", "model"),
        *("--engine", "onnx", "--json", "--quiet"),
        cwd=data,
    )
    assert onnx.code == 0, onnx.err
    Index.build(data / "mini" / "corpus.jsonl", out=data / "mini.index", model=data / "model")
    hits = sbert_search(
        *("search", "mini.index", "the moon", "--rerank", "reranker", "--engine", "onnx"),
        *("--json", "--quiet"),
        cwd=data,
    )
    assert (hits.code, len(hits.records)) == (0, 3), hits.err
    wrong = sbert_search("eval", "nli", "graded.jsonl", *by_model, cwd=data)
    assert (wrong.code, "Unknown label '1'" in wrong.err) == (1, True)
    both = ("--cross-encoder", "reranker", "--baselines")
    refused = sbert_search("eval", "sts", "pairs.jsonl", *both, cwd=data)
    assert (refused.code, "--cross-encoder replaces --model" in refused.err) == (2, True)
    for option in (("--model", "hashing"), ("--no-cache",)):
        refused = sbert_search("eval", "sts", "pairs.jsonl", *both[:2], *option, cwd=data)
        shown = f"{option[0]} has no effect with --cross-encoder"
        assert (refused.code, shown in refused.err) == (2, True)
    unnamed = sbert_search("eval", "rerank", "graded.jsonl", cwd=data)
    assert (unnamed.code, "Name a cross-encoder with --model" in unnamed.err) == (2, True)
