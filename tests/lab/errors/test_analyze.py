import json
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.report import write_reports
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.lab.errors.analyze import analyze_errors

DOCUMENTS = {"bees": "bees dance in the hive", "bread": "baking bread", "moon": "the far moon"}
QUERIES = {"q1": "why do bees dance", "q2": "yeast"}
PAIRS = [
    ("a cat sat", "a cat sat", 5.0),
    ("black cat", "black dog", 2.0),
    ("rain", "the bird sings", 4.0),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "mini"
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in rows.items())
        (folder / f"{name}.jsonl").write_text("".join(lines))
    judged = "query-id\tcorpus-id\tscore\nq1\tbees\t1\nq2\tbread\t1\n"
    (folder / "qrels" / "test.tsv").write_text(judged)
    pairs = ("\t".join(map(str, row)) + "\n" for row in PAIRS)
    (tmp_path / "data" / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(pairs))
    return tmp_path / "data"


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    tasks = [
        EvalTask(name="mini", kind="retrieval", path=Path("mini")),
        EvalTask(name="pairs", kind="sts", path=Path("pairs.tsv")),
    ]
    out = tmp_path / "run"
    write_reports([evaluate_retrieval(tasks[0], HashingEmbedder(), data=data)], out)
    write_reports([evaluate_sts(tasks[1], HashingEmbedder(), data=data)], out)
    return out


def test_all_records_of_a_folder(run: Path, data: Path) -> None:
    retrieval, sts = analyze_errors(run, data=data)
    assert (retrieval.task, retrieval.metric, retrieval.items) == ("mini", "nDCG@10", 2)
    record = json.loads((run / "mini.json").read_text())
    assert retrieval.mean == pytest.approx(record["scores"]["nDCG@10"])
    assert retrieval.worst[0].item == "q2"
    assert (sts.task, sts.metric, sts.higher_is_better) == ("pairs", "rank error", False)
    assert [each.item for each in sts.worst] == ["1", "2", "0"]
    # Gold ranks 3, 1, 2. The third pair shares no word, the second shares "a": 3, 2, 1.
    assert sts.mean == pytest.approx((0 + 1 / 3 + 1 / 3) / 3)


def test_one_record_and_another_metric(run: Path, data: Path) -> None:
    (report,) = analyze_errors(run / "mini.json", data=data, metric="MRR@10", worst=1)
    record = json.loads((run / "mini.json").read_text())
    assert (report.metric, len(report.worst)) == ("MRR@10", 1)
    assert report.mean == pytest.approx(record["scores"]["MRR@10"])
    with pytest.raises(EvaluationError, match="no metric 'MR'; the record has: nDCG@10"):
        analyze_errors(run / "mini.json", data=data, metric="MR")


def test_data_of_another_run_are_refused(run: Path, data: Path) -> None:
    file = data / "mini" / "queries.jsonl"
    file.write_text(file.read_text().replace("yeast", "flour"))
    with pytest.raises(EvaluationError, match=r"queries\.jsonl has sha256 .*point data"):
        analyze_errors(run / "mini.json", data=data)
    with pytest.raises(EvaluationError, match=r"pairs\.tsv does not exist; point data"):
        analyze_errors(run / "pairs.json", data=data / "mini")


def test_data_of_an_absolute_path_cannot_be_pointed_at(run: Path, data: Path) -> None:
    record = json.loads((run / "pairs.json").read_text())
    record["task"]["path"] = str(data / "pairs.tsv")
    (run / "pairs.json").write_text(json.dumps(record))
    (data / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\n")
    with pytest.raises(EvaluationError, match=r"has sha256 .*; put back the file of the run"):
        analyze_errors(run / "pairs.json", data=data)
    (data / "pairs.tsv").unlink()
    with pytest.raises(EvaluationError, match=r"does not exist; put back the file of the run"):
        analyze_errors(run / "pairs.json", data=data)


def test_a_metric_for_pairs_alone_is_refused(run: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"metric has no effect on .*pairs"):
        analyze_errors(run / "pairs.json", data=data, metric="MRR@10")
    assert len(analyze_errors(run, data=data, metric="MRR@10")) == 2


def test_a_run_file_that_is_absent_is_named(run: Path, data: Path) -> None:
    (run / "mini.trec").unlink()
    with pytest.raises(EvaluationError, match=r"mini\.trec does not exist"):
        analyze_errors(run, data=data)


def test_records_of_other_kinds_are_refused(run: Path, data: Path) -> None:
    record = json.loads((run / "pairs.json").read_text())
    record["task"]["kind"] = "nli"
    (run / "pairs.json").write_text(json.dumps(record))
    with pytest.raises(EvaluationError, match="pairs is a task for eval nli"):
        analyze_errors(run, data=data)
