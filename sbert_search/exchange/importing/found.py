"""The contents of a source of vectors, as arguments for the build of an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbert_search.errors import ConfigError
from sbert_search.index.storage.manifest import Metric, VectorType
from sbert_search.text.fields import FieldNames
from sbert_search.text.ids import IdsLike
from sbert_search.text.spool import Sources
from sbert_search.text.vectors import RowVectors

FIELDS = ("--id-field", "--text-field", "--title-field")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The vectors of a source, with their ids and, if the source has them, texts and metadata.

    Attributes:
        rows: Rows with ids, texts and metadata; None: the source has vectors and perhaps ids, but
            no texts and metadata.
        vectors: One vector for each row; None: the field ``fields.vector`` of ``rows`` has them.
        ids: One id for each vector. Only used if ``rows`` is None. None: the id of a vector is its
            number, from 0.
        fields: Names of the fields of ``rows`` with the id, the text, the title and the vector.
        metadata_fields: Fields of ``rows`` that become metadata columns; None: all fields that
            have no other use.
        metric: The metric of the source; None: the source does not state its metric.
        dtype: The type of the vectors of the index that was exported; None: none is stated.
        recorded: What the source records about the model that made the vectors: fields of a
            `ModelIdentity`. Empty if the source records no model.
        keeps: Objects that own resources of the source, such as a client or a mapped file. They
            must not be freed before the index is built.
    """

    rows: Sources | None = None
    vectors: RowVectors | None = None
    ids: IdsLike | None = None
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    metadata_fields: tuple[str, ...] | None = None
    metric: Metric | None = None
    dtype: VectorType | None = None
    recorded: Mapping[str, object] = field(default_factory=dict)
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The options of `import_index` that say what to read from a source.

    Attributes:
        ids: A file of ids; None: the ids that the source holds, else the file of ids beside it, if
            there is one.
        fields: Names of the fields with the id, the text, the title and the vector. A name that is
            None is detected.
        table: Name of the table or collection; None: the only one in the source.
        metric: The metric of the new index; None: the metric of the source.
    """

    ids: Path | None = None
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    table: str | None = None
    metric: Metric | None = None

    def require_only(self, shown: str, *options: str) -> None:
        """Refuse options that have no effect on a source.

        Args:
            shown: Name of the source in messages.
            options: The options of the command `index import` that have an effect on the source,
                such as ``--table``.

        Raises:
            ConfigError: The user gave an option that is not in ``options``.
        """
        values = {
            "--ids": self.ids,
            "--table": self.table,
            "--id-field": self.fields.id,
            "--text-field": self.fields.text,
            "--title-field": self.fields.title,
            "--vector-field": self.fields.vector,
        }
        for option, value in values.items():
            if value is not None and option not in options:
                raise ConfigError(f"{option} has no effect on {shown}; leave it out.")
