"""Analyse the errors of the evaluation runs that the command `eval` recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict, Unpack

from sbert_search.base.progress import progress
from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.comparison import read_runs
from sbert_search.evaluate.manifest import EvaluationRecord
from sbert_search.evaluate.retrieval import collection_files
from sbert_search.evaluate.tasks import EvalTask
from sbert_search.lab.errors.items import (
    RANK_ERROR,
    Analysed,
    WordReader,
    analyze_pairs,
    analyze_queries,
)
from sbert_search.lab.errors.report import ErrorReport
from sbert_search.lab.errors.slices import slice_items
from sbert_search.models.loading.identity import sha256_of
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.retrieval import read_qrels, read_queries, read_run

KINDS = ("retrieval", "sts")


class ErrorOptions(TypedDict, total=False):
    """Options of `analyze_errors`.

    Attributes:
        data: Folder that the paths of the tasks start from; default "data".
        metric: Metric by which queries are ordered; default: the main metric of each task. Pairs
            are always ordered by their rank error.
        worst: Number of worst items to describe; default 50.
        language: Language of the stemmer that removes inflections before words are compared, and of
            the stop words that are ignored. ``none``: inflections stay, and no word is ignored.
            Default english.
        seed: Seed of the bootstraps and shuffles; default 0.
    """

    data: str | Path
    metric: str | None
    worst: int
    language: str
    seed: int


def analyze_errors(run: str | Path, **options: Unpack[ErrorOptions]) -> list[ErrorReport]:
    """Find the worst queries or pairs of a run, and slices where the model is worse than elsewhere.

    A slice is a group of items with similar values of a feature. The features are lengths; words
    in common between a query and a relevant document, or between the texts of a pair; the
    frequency of the rarest word; the number of relevant documents; and the gold score of a pair.
    Each slice is compared with the other items.

    Args:
        run: The JSON record that ``eval retrieval --out`` or ``eval sts --out`` wrote, or a folder
            of such records. The run file ``TASK.trec`` of a retrieval must be in the same folder.
        options: Data folder and settings of the analysis; see `ErrorOptions`.

    Returns:
        A report for each task.

    Raises:
        ConfigError: The language is unknown, or a metric is given although all tasks are STS.
        CorpusError: Data or a run file cannot be read.
        EvaluationError: A record cannot be read, is not of the kind retrieval or sts, or lacks the
            metric; a run file is absent; no query has a relevant document; or the data are not
            those of the run.

    Example:
        >>> [report.task for report in analyze_errors("my-run", worst=5)]
        ['sts']
    """
    path = Path(run)
    folder = path if path.is_dir() else path.parent
    records = read_runs(path)
    for name, record in records.items():
        if record["task"]["kind"] not in KINDS:
            raise EvaluationError(
                f"{name} is a task for eval {record['task']['kind']}; name a record of eval "
                "retrieval or eval sts."
            )
    if options.get("metric") and all(r["task"]["kind"] == "sts" for r in records.values()):
        raise ConfigError(
            f"metric has no effect on {path}, a run over pairs, which are ordered by their "
            f"{RANK_ERROR}; leave it out."
        )
    reader = WordReader(options.get("language", "english"))
    return [_report(record, folder, reader, options) for record in records.values()]


def _report(
    record: EvaluationRecord, folder: Path, reader: WordReader, options: ErrorOptions
) -> ErrorReport:
    task = from_mapping(EvalTask, {**record["task"]})
    data, worst = Path(options.get("data", "data")), options.get("worst", 50)
    if task.kind == "sts":
        metric = RANK_ERROR
        analysed = _of_pairs(task, record, data, reader, worst)
    else:
        metric = options.get("metric") or task.main_metric
        analysed = _of_queries(
            task, record, metric, folder / f"{task.name}.trec", data, reader, worst
        )
    if not analysed.values:
        raise EvaluationError(f"{task.name}: no query has a relevant document.")
    higher = metric != RANK_ERROR
    slices = slice_items(
        analysed.values, analysed.features, higher_is_better=higher, seed=options.get("seed", 0)
    )
    return ErrorReport(
        task=task.name,
        kind=task.kind,
        model=str(record["manifest"]["model"]["name"]),
        metric=metric,
        higher_is_better=higher,
        mean=sum(analysed.values) / len(analysed.values),
        items=len(analysed.values),
        left_out=analysed.left_out,
        language=options.get("language", "english"),
        slices=tuple(slices),
        worst=tuple(analysed.worst),
    )


def _of_pairs(
    task: EvalTask, record: EvaluationRecord, data: Path, reader: WordReader, worst: int
) -> Analysed:
    _check_data(task, record, [data / task.path])
    names = task.columns
    pairs = read_pairs(data / task.path, text1=names.text1, text2=names.text2, score=names.score)
    per_item = record["per_item"]
    ids = list(per_item["gold"])
    return analyze_pairs(
        [(item, pairs[int(item)]) for item in ids],
        [per_item["predicted"][item] for item in ids],
        [per_item["gold"][item] for item in ids],
        reader=reader,
        worst=worst,
    )


def _of_queries(
    task: EvalTask,
    record: EvaluationRecord,
    metric: str,
    run_file: Path,
    data: Path,
    reader: WordReader,
    worst: int,
) -> Analysed:
    values = record["per_item"].get(metric)
    if values is None:
        known = ", ".join(record["per_item"])
        raise EvaluationError(f"{task.name}: no metric {metric!r}; the record has: {known}.")
    if not run_file.exists():
        raise EvaluationError(
            f"{run_file} does not exist; `eval retrieval --out` writes it beside the record. Run "
            "the evaluation again."
        )
    folder = data / task.path
    _check_data(task, record, collection_files(task, folder))
    queries = [query for query in read_queries(folder) if query.query_id in values]
    corpus = CorpusReader(str(folder), on_error=task.on_error)
    return analyze_queries(
        queries,
        _documents(corpus),
        read_qrels(folder, task.split),
        read_run(run_file),
        values,
        reader=reader,
        worst=worst,
    )


def _documents(corpus: CorpusReader) -> Iterator[Document]:
    with progress("Reading documents", corpus.survey().rows, "documents") as advance:
        for batch in corpus.batches():
            yield from batch.documents
            advance(len(batch.documents))


def _check_data(task: EvalTask, record: EvaluationRecord, files: list[Path]) -> None:
    """Refuse data files that are absent or differ from the files of the run."""
    relative = not Path(task.path).is_absolute()  # --data has no effect on an absolute path
    again = "put back the file of the run, or run the evaluation again"
    recorded = {Path(n).name: sha256 for n, sha256 in record["manifest"]["data_sha256"].items()}
    for file in files:
        if not file.is_file():
            raise EvaluationError(
                f"{task.name}: {file} does not exist; "
                f"{'point --data at the folder of the data sets' if relative else again}."
            )
        if (sha256 := sha256_of(file)) != recorded.get(file.name):
            raise EvaluationError(
                f"{task.name}: {file} has sha256 {sha256}, but the run was made with "
                f"{recorded.get(file.name, 'no such file')}; "
                f"{'point --data at the data of the run' if relative else again}."
            )
