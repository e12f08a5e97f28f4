"""What a head predicts for the rows of a file, in bounded memory, or for documents as columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.base.files import NewFile, replacing
from sbert_search.base.folders import first_same_file, require_apart, require_possible_output
from sbert_search.base.options import if_offered
from sbert_search.base.progress import note, progress, warn
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.heads.predictor import Predictor, Text
from sbert_search.heads.results import Prediction, TaskName
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.records import Document, MetadataValue
from sbert_search.tag_schemes import OUTSIDE
from sbert_search.text.column_types import ColumnType
from sbert_search.text.documents import ReadBatch, Survey
from sbert_search.text.formats.rows import BadRow, Reject, RejectLog, check_text
from sbert_search.text.labelled.pairs import MissingColumnError, find_columns, text_of
from sbert_search.text.labelled.texts import COLUMNS as TEXT_COLUMNS
from sbert_search.text.sources import SourceFile, classify, field_names, read_rows
from sbert_search.text.spool import source_files

IDS = ("id", "_id", "doc_id")
COLUMNS: Mapping[TaskName, Mapping[str, tuple[str, ...]]] = {
    "classify": {part: TEXT_COLUMNS[part] for part in ("text", "text2")},
    "tag": {"text": ("text", "sentence")},
    "qa": {"text": ("question", "query"), "text2": ("context", "text", "passage")},
}
"""Default column names, in order of preference, for each task and each part of an input row."""

_Input = tuple[int, str | None, Text]  # number and id of a row, and its text or pair of texts

_ROWS, _CHARS = 1024, 1 << 22  # a batch ends when it has this many rows or characters
_PLACE = [("row", pa.int64()), ("id", pa.string())]
_SPAN = [("start", pa.int64()), ("end", pa.int64())]
_SCORE = ("score", pa.float64())
_ENTITY = pa.struct([("label", pa.string()), *_SPAN, ("text", pa.string()), _SCORE])
_FIELDS: Mapping[TaskName, list[tuple[str, pa.DataType]]] = {
    "classify": [
        ("label", pa.string()),
        _SCORE,
        ("labels", pa.list_(pa.string())),
        ("scores", pa.map_(pa.string(), pa.float64())),
    ],
    "tag": [("entities", pa.list_(_ENTITY))],
    "qa": [("answer", pa.string()), *_SPAN, _SCORE, ("margin", pa.float64())],
}


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """The prediction for one row of a file."""

    number: int  # line or row of the file, from 1
    row_id: str | None
    text: str  # the row's text, or the question
    prediction: Prediction

    def to_row(self, *, all_scores: bool = False) -> dict[str, object]:
        """Return number, id (if there is one) and prediction of the row as an object for JSON."""
        place: dict[str, object] = {"row": self.number}
        if self.row_id is not None:
            place["id"] = self.row_id
        return place | self.prediction.to_row(all_scores=all_scores)


# `source_files` copies standard input to a temporary file. It deletes the file when this object is
# deleted, for which it needs a weak reference to this object.
@dataclass(slots=True, weakref_slot=True)
class FilePredictor:
    """Predicts for the rows of a file, in batches of limited size.

    ``text`` is the column of the text or question, ``text2`` that of the second text, or of the
    text to answer from; None: the first name in `COLUMNS` that the file has. A bad row that is
    skipped is counted in ``rejected``, with a warning.
    """

    predictor: Predictor
    text: str | None = None
    text2: str | None = None
    on_error: Literal["stop", "skip"] = "stop"
    rejected: int = field(default=0, init=False)
    _log: RejectLog | None = field(default=None, init=False)
    _unwritten: list[Reject] = field(default_factory=list, init=False)  # not yet in the log

    def __post_init__(self) -> None:
        if self.on_error not in ("stop", "skip"):
            raise ConfigError(f"on_error is {self.on_error!r}; use 'stop' or 'skip'.")
        if self.text2 is not None and self.predictor.task == "tag":
            raise ConfigError(
                f"{self.predictor.opened.name} tags single texts; name no field of a second text "
                "(--text2-field)."
            )

    def rows(self, source: str | Path) -> Iterator[PredictedRow]:
        """Yield a prediction for each row of a file, or of JSON lines on standard input (``-``)."""
        yield from self._predicted(self._file(source))

    def write(self, source: str | Path, out: Path, *, all_scores: bool = False) -> int:
        """Write the predictions to a .jsonl or .parquet file, which appears when it is complete.

        Bad rows that are left out are listed in ``OUT.rejects.jsonl``. The number of predictions is
        returned. Parquet always has all scores.
        """
        if out.suffix not in (".jsonl", ".parquet"):
            raise ConfigError(f"{out}: predictions are written as .jsonl or .parquet; rename it.")
        require_possible_output(out)
        file = self._file(source)
        require_apart(out, [file.path, Path(self.predictor.opened.name)])
        write = self._write_parquet if out.suffix == ".parquet" else self._write_json
        self._log = log = RejectLog(out)
        try:
            with replacing(out) as target:
                count = write(self._predicted(file), target, all_scores)
            self._write_rejects(log)
        finally:
            self._log = None
            self._unwritten.clear()
        log.finish(was_read=first_same_file(log.path, [file.path]) is not None)
        return count

    def _file(self, source: str | Path) -> SourceFile:
        return source_files("-", self)[0] if str(source) == "-" else classify(Path(source))

    def _predicted(self, file: SourceFile) -> Iterator[PredictedRow]:
        with progress("Predicting", None, "rows") as advance:
            for batch in _batches(self._inputs(file)):
                texts = [text for _, _, text in batch]
                found = self.predictor.predict(texts)
                for (number, row_id, text), prediction in zip(batch, found, strict=True):
                    shown = text if isinstance(text, str) else text[0]
                    yield PredictedRow(number, row_id, shown, prediction)
                advance(len(batch))

    def _inputs(self, file: SourceFile) -> Iterator[_Input]:
        """Yield for each row its number, its id, and its text or pair of texts."""
        names = field_names(file)
        if names is None:
            raise CorpusError(f"{file.shown}: holds no rows.")
        columns = _columns(
            self.predictor.task, {"text": self.text, "text2": self.text2}, names, file
        )
        if self.predictor.task == "classify" and self.text2 is None and len(columns) > 1:
            # A model does not record whether it was trained on single texts or on pairs, so a note
            # tells the user how the rows are read.
            note(
                f"{file.shown}: each row is a pair of texts, of the columns {columns[0]} and "
                f"{columns[1]}. If the model classifies single texts, remove {columns[1]}."
            )
        id_name = next((name for name in IDS if name in names), None)
        for row in read_rows(file):
            if isinstance(row, Reject):
                self._reject(row)
                continue
            try:
                texts = [text_of(row.values, name) for name in columns]
                row_id = None if id_name is None else row.values.get(id_name)
                shown = None if row_id is None else check_text(str(row_id), id_name or "")
            except BadRow as bad:
                self._reject(bad.at(row.source))
                continue
            text: Text = texts[0] if len(texts) == 1 else (texts[0], texts[1])
            yield row.number, shown, text

    def _reject(self, reject: Reject) -> None:
        if self.on_error == "stop":
            skip = "Fix it, or pass --on-error skip to leave bad rows out."
            raise reject.error(if_offered("--on-error", skip, "Fix it."))
        warn(f"Left out: {reject.error()}")
        self.rejected += 1
        if self._log is not None:
            self._unwritten.append(reject)
            if len(self._unwritten) == _ROWS:
                self._write_rejects(self._log)

    def _write_rejects(self, log: RejectLog) -> None:
        log.append(self._unwritten)
        self._unwritten.clear()

    def _write_json(self, rows: Iterable[PredictedRow], target: NewFile, all_scores: bool) -> int:
        count = 0
        for row in rows:
            count += 1
            line = json.dumps(row.to_row(all_scores=all_scores), ensure_ascii=False)
            target.write(line.encode("utf-8", "backslashreplace") + b"\n")
        return count

    def _write_parquet(
        self, rows: Iterable[PredictedRow], target: NewFile, all_scores: bool
    ) -> int:
        schema, count = pa.schema([*_PLACE, *_FIELDS[self.predictor.task]]), 0
        with pq.ParquetWriter(cast(IO[bytes], target), schema) as writer:
            rows = iter(rows)
            while batch := [_record(row) for row in islice(rows, 8 * _ROWS)]:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                count += len(batch)
        return count


def _columns(
    task: TaskName, named: Mapping[str, str | None], names: Sequence[str], file: SourceFile
) -> list[str]:
    known = COLUMNS[task]
    parts = {part: named[part] for part in known}
    needed = ("text", "text2") if task == "qa" else ("text",)
    try:
        return list(find_columns(parts, known, names, file.shown, needed).values())
    except MissingColumnError as error:
        usual = " or ".join(known[error.part])
        option = "--text-field" if error.part == "text" else "--text2-field"
        raise CorpusError(
            f"{file.shown}: no column {usual} among {', '.join(names)}. Name the column to use "
            f"with {option} ({error.part}=NAME)."
        ) from None


def _record(row: PredictedRow) -> dict[str, object]:
    record = row.to_row(all_scores=True)
    if isinstance(scores := record.get("scores"), dict):
        record["scores"] = list(scores.items())
        record.setdefault("labels", [record["label"]])
    return record


def _batches(inputs: Iterable[_Input]) -> Iterator[list[_Input]]:
    batch, chars = list[_Input](), 0
    for item in inputs:
        batch.append(item)
        chars += len(item[2]) if isinstance(item[2], str) else sum(map(len, item[2]))
        if len(batch) == _ROWS or chars >= _CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


_NO_NAME = re.compile(r"\W")  # characters that "_" replaces in the name of a column


class PredictedColumns:
    """Opens task heads and adds their predictions to documents.

    The models compute in fp32 on every device, so that a document that is added again gets the same
    values, and counts as a duplicate. Classifiers and taggers are names or folders by the column
    that they fill; ``hashes`` are the SHA-256 of the weights that they must have, {}: any.
    """

    def __init__(
        self, classify: Mapping[str, str], tag: Mapping[str, str], hashes: Mapping[str, str]
    ) -> None:
        if shared := classify.keys() & tag.keys():
            raise ConfigError(f"Two models fill the column {min(shared)!r}; name another column.")
        self._models = {**classify, **tag}
        self._tasks = dict.fromkeys(classify, "classify") | dict.fromkeys(tag, "tag")
        self._expected = hashes

    @cached_property
    def _predictors(self) -> dict[str, Predictor]:
        opened: dict[str, Predictor] = {}
        for column, model in self._models.items():
            predictor = Predictor(model, precision="fp32")
            if predictor.task != self._tasks[column]:
                raise ConfigError(
                    f"{model}, which is to fill the column {column!r}, is a model for "
                    f"{predictor.task}, not for {self._tasks[column]}."
                )
            found = predictor.identity.weights_sha256
            if self._expected.get(column, found) != found:
                raise ModelMismatch(
                    f"{model} fills the column {column!r} of the index, and its weights have "
                    "changed. Put the old model back, or build the index again."
                )
            opened[column] = predictor
        return opened

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of the weights of each model, by column."""
        return {
            column: predictor.identity.weights_sha256
            for column, predictor in self._predictors.items()
        }

    @cached_property
    def types(self) -> dict[str, ColumnType]:
        """Type of each column that the models fill.

        A tagger fills its column with the texts of all entities, and one column for each type of
        entity, such as ``names_person``.
        """
        types: dict[str, ColumnType] = {}
        for column, predictor in self._predictors.items():
            if predictor.task == "classify":
                types[column] = _type_of(predictor)
                continue
            for name in (column, *_columns_by_kind(column, predictor).values()):
                if name in types:
                    raise ConfigError(
                        f"Two models fill the column {name!r}: {self._models[column]} has one for "
                        "each type of entity. Name another column."
                    )
                types[name] = "list[string]"
        return types

    def survey(self, survey: Survey, known: Iterable[str] = ()) -> Survey:
        """Add the predicted columns to a survey, which may have only those in ``known``."""
        if taken := (self.types.keys() & survey.columns.keys()) - set(known):
            raise ConfigError(
                f"The sources have a column {min(taken)!r}, which a model is to fill; name another "
                "column for the model, or leave the column out with metadata_fields."
            )
        unread = tuple(part for part in survey.unread if part.name not in self.types)
        return replace(survey, columns={**survey.columns, **self.types}, unread=unread)

    def batches(self, batches: Iterator[ReadBatch]) -> Iterator[ReadBatch]:
        """Add the predictions to the documents of each batch."""
        for batch in batches:
            yield replace(batch, documents=self.documents(batch.documents))

    def documents(self, documents: Sequence[Document]) -> list[Document]:
        """Return documents with the predictions among their metadata."""
        texts = [document.full_text for document in documents]
        values: list[dict[str, MetadataValue]] = [dict(doc.metadata) for doc in documents]
        for column, predictor in self._predictors.items():
            if predictor.task == "classify":
                kind = _type_of(predictor)
                for own, label in zip(values, predictor.classify(texts), strict=True):
                    several = list(label.labels) or None
                    single = label.score if kind == "float64" else label.label
                    own[column] = several if kind == "list[string]" else single
                continue
            by_kind = _columns_by_kind(column, predictor)
            for own, found in zip(values, predictor.tag(texts), strict=True):
                for name in (column, *by_kind.values()):
                    own.pop(name, None)  # a value of the source would stay if nothing is found
                lists: dict[str, list[str]] = {}
                for entity in found.entities:
                    if entity.label == OUTSIDE:  # of tags that mark no entities
                        continue
                    tag = entity.label if entity.label in by_kind else _kind(entity.label)
                    for name in (column, by_kind[tag]):
                        lists.setdefault(name, []).append(entity.text)
                own.update({name: list(dict.fromkeys(items)) for name, items in lists.items()})
        return [
            replace(document, metadata=own) for document, own in zip(documents, values, strict=True)
        ]


def _type_of(predictor: Predictor) -> ColumnType:
    model = predictor.model
    assert isinstance(model, SequenceClassifier)
    if model.kind == "number":
        return "float64"
    return "list[string]" if model.kind == "several" else "string"


def _columns_by_kind(column: str, predictor: Predictor) -> dict[str, str]:
    """Return the column of each entity type, such as ``{"person": "names_person"}``."""
    kinds = {_kind(label) for label in predictor.labels if label != OUTSIDE}
    return {kind: f"{column}_{_NO_NAME.sub('_', kind)}" for kind in sorted(kinds)}


def _kind(tag: str) -> str:
    return tag.partition("-")[2] or tag
