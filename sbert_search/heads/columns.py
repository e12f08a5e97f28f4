"""Metadata columns that task heads predict from the text of each document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from sbert_search.errors import ConfigError, ModelMismatch
from sbert_search.heads.predictor import Predictor
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.records import Document, MetadataValue
from sbert_search.text.column_types import ColumnType
from sbert_search.text.documents import ReadBatch, Survey

_NO_NAME = re.compile(r"\W")  # characters that "_" replaces in the name of a column


class PredictedColumns:
    """Opens task heads and adds their predictions to documents.

    The models compute in fp32 on every device, so that a document that is added again gets the
    same values, and counts as a duplicate.

    Args:
        classify: Name or folder of a classifier of texts, by the column that it fills.
        tag: Name or folder of a tagger of entities, by the column that it fills.
        hashes: SHA-256 of the weights that each model must have, by column; {}: any weights.

    Raises:
        ConfigError: A classifier and a tagger have the same column.
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
        """Add the predicted columns to those of a survey.

        Args:
            survey: The survey of the sources.
            known: Columns that the index has already.

        Raises:
            ConfigError: The sources have a column of the same name, which is not in ``known``.
        """
        if taken := (self.types.keys() & survey.columns.keys()) - set(known):
            raise ConfigError(
                f"The sources have a column {min(taken)!r}, which a model is to fill; name another "
                "column for the model, or leave the column out with metadata_fields."
            )
        return replace(survey, columns={**survey.columns, **self.types})

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
                    for name in (column, by_kind[entity.label]):
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
    kinds = {label.partition("-")[2] or label for label in predictor.labels if label != "O"}
    return {kind: f"{column}_{_NO_NAME.sub('_', kind)}" for kind in sorted(kinds)}
