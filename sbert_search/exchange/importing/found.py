"""The contents of a source of vectors, as arguments for the build of an index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sbert_search.corpus.fields import FieldNames
from sbert_search.corpus.id_column import IdsLike
from sbert_search.corpus.spool import Sources
from sbert_search.corpus.vectors import RowVectors
from sbert_search.errors import ConfigError
from sbert_search.index.storage.manifest import Metric

FIELDS = ("--id-field", "--text-field", "--title-field")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The vectors of a source, with the rows or ids that they belong to.

    Attributes:
        rows: The rows with texts and metadata; None: there are only ids.
        vectors: One vector for each row; None: a field of the rows holds them.
        ids: One id for each vector, if ``rows`` is None; None: the numbers of the vectors, from 0.
        fields: Names of the fields of the rows.
        metadata_fields: Fields that become metadata columns; None: all that ``fields`` does not
            name.
        metric: The metric of the source; None: it states none.
        recorded: Fields of the identity of the model that made the vectors, as the source records
            them; empty if it records none.
        keeps: Temporary objects that must live until the index is built.
    """

    rows: Sources | None = None
    vectors: RowVectors | None = None
    ids: IdsLike | None = None
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    metadata_fields: tuple[str, ...] | None = None
    metric: Metric | None = None
    recorded: Mapping[str, object] = field(default_factory=dict)
    keeps: tuple[object, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the user asked to read from a source.

    Attributes:
        ids: A file of ids; None: the file beside the vectors, if there is one.
        fields: Names of fields; those that are None are detected.
        table: Name of the table or collection; None: the only one.
        metric: The metric of the new index; None: that of the source.
    """

    ids: Path | None = None
    fields: FieldNames = FieldNames()  # noqa: RUF009 (frozen)
    table: str | None = None
    metric: Metric | None = None

    def require_only(self, shown: str, *options: str) -> None:
        """Refuse options that have no effect on a source.

        Args:
            shown: The source in messages.
            options: The options of `index import` that have an effect on it.

        Raises:
            ConfigError: Another option has a value.
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
