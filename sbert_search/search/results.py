"""The hits of a search as a list that notebooks show and that converts to tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, SupportsIndex, overload

from sbert_search.base.progress import visible
from sbert_search.errors import ConfigError
from sbert_search.records import Hit

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from sbert_search.index.storage.manifest import ColumnType

_SHOWN = 20  # hits that `repr` and notebooks show
_CELL_CHARS = 300  # characters of a text that a notebook shows


class Hits(list[Hit]):
    """The hits of one query, best first: a list of `Hit` with conversions to tables.

    Args:
        hits: The hits.
        query: See the attribute ``query``.
        mode: See the attribute ``mode``.
        commit: See the attribute ``commit``.
        missing: See the attribute ``missing``.
        total: See the attribute ``total``.
        columns: The metadata columns of the index with their types. A table of the hits has all
            these columns, even if no hit has a value in a column. None: a table has only the
            columns in which a hit has a value.

    Attributes:
        query: The query as it was asked; "" if the search had no text, but a vector.
        mode: The mode of the search that found the hits: dense, lexical or hybrid; "" if unknown.
            For ``mode="auto"``, this is the mode that was chosen.
        commit: Number of commits of the index up to the state that was searched; 0 if unknown.
        missing: Names of the shards that did not answer, so that their documents may be absent.
            Only a search on a cluster that allows partial answers can have such shards.
        total: Number of documents that match, of a search without a query; None: unknown, see
            `SearchEngine.count`.

    Example:
        >>> hits = SearchEngine("my.index").search("river wheel", k=2)
        >>> len(hits), hits.mode
        (2, 'hybrid')
    """

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        *,
        query: str = "",
        mode: str = "",
        commit: int = 0,
        missing: tuple[str, ...] = (),
        total: int | None = None,
        columns: Mapping[str, ColumnType] | None = None,
    ) -> None:
        super().__init__(hits)
        self.query, self.mode, self.commit, self.missing = query, mode, commit, missing
        self.total, self._columns = total, columns or {}

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> Hit: ...

    @overload
    def __getitem__(self, at: slice, /) -> Hits: ...

    def __getitem__(self, at: SupportsIndex | slice, /) -> Hit | Hits:
        if isinstance(at, slice):
            part = copy(self)
            part[:] = super().__getitem__(at)
            return part
        return super().__getitem__(at)

    def __repr__(self) -> str:
        found = f"{len(self):,} {'hit' if len(self) == 1 else 'hits'}"
        head = f"<Hits: {found}{f' for {self.query!r:.60}' if self.query else ''}>"
        rest = [f"  ... and {len(self) - _SHOWN:,} more"] if len(self) > _SHOWN else []
        return "\n".join([head, *(f"  {hit!r}" for hit in self[:_SHOWN]), *rest])

    def _repr_html_(self) -> str:
        """Return a table for notebooks, with the texts of documents escaped."""
        names = list(dict.fromkeys(name for hit in self[:_SHOWN] for name in hit.metadata))
        head = "".join(f"<th>{_cell(n)}</th>" for n in ("", "score", "document", "text", *names))
        rows = "".join(f"<tr>{''.join(_html_cells(hit, names))}</tr>" for hit in self[:_SHOWN])
        more = f"<p>and {len(self) - _SHOWN:,} more hits</p>" if len(self) > _SHOWN else ""
        caption = f"<caption>{_cell(self.query)}</caption>" if self.query else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}"

    def to_arrow(self) -> pa.Table:
        """Make a pyarrow table with one row for each hit.

        Returns:
            The columns rank, doc_id, score, title, text, passage, chunk, best_sentence and
            matched_words; for each stage of the search, its rank and score, such as dense_rank and
            dense_score, null for a hit that the stage did not find; answer and answer_score, if a
            hit has an answer; and the metadata columns of the index by name, null for a hit without
            a value. If the name of a metadata column is already in use in the table, ``meta.`` is
            put before it, repeatedly until the name is free.
        """
        import pyarrow as pa

        columns: dict[str, pa.Array] = {
            name: pa.array([getattr(hit, name) for hit in self], kind)
            for name, kind in (
                ("rank", pa.int64()),
                ("doc_id", pa.string()),
                ("score", pa.float64()),
                ("title", pa.string()),
                ("text", pa.string()),
                ("passage", pa.string()),
                ("chunk", pa.int64()),
                ("best_sentence", pa.string()),
                ("matched_words", pa.list_(pa.string())),
            )
        }
        for stage in dict.fromkeys(name for hit in self for name in hit.stages):
            scores = [hit.stages.get(stage) for hit in self]
            columns[f"{stage}_rank"] = pa.array([s and s.rank for s in scores], pa.int64())
            columns[f"{stage}_score"] = pa.array([s and s.score for s in scores], pa.float64())
        if any(hit.answer for hit in self):
            answers = [hit.answer for hit in self]
            columns["answer"] = pa.array([a and a.text for a in answers], pa.string())
            columns["answer_score"] = pa.array([a and a.score for a in answers], pa.float64())
        for name in dict.fromkeys([*self._columns, *(n for hit in self for n in hit.metadata)]):
            kind = _arrow_type(self._columns[name]) if name in self._columns else None
            cells = [hit.metadata.get(name) for hit in self]
            if kind == pa.float64():  # Arrow converts no integer beyond 2**53 itself
                cells = [float(cell) if isinstance(cell, int) else cell for cell in cells]
            values = pa.array(cells, kind)
            while name in columns:
                name = f"meta.{name}"
            columns[name] = values
        return pa.table(columns)

    def to_pandas(self) -> pd.DataFrame:
        """Make a pandas DataFrame with one row for each hit and the columns of `to_arrow`.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401 (used by pyarrow)
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from error
        return self.to_arrow().to_pandas()


def _arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the type that Arrow itself chooses for values of a metadata column."""
    import pyarrow as pa

    item = kind.removeprefix("list[").removesuffix("]")
    scalars = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "date": pa.date32(),
    }
    return scalars[item] if item == kind else pa.list_(scalars[item])


def _html_cells(hit: Hit, names: Iterable[str]) -> Iterator[str]:
    document = _cell(hit.title or hit.doc_id)
    if hit.title:
        document += f"<br><small>{_cell(hit.doc_id)}</small>"
    yield f"<td>{hit.rank}</td><td>{hit.score:.4f}</td><td>{document}</td>"
    yield f"<td>{_cell(hit.best_sentence or hit.text)}</td>"
    metadata: Mapping[str, object] = hit.metadata
    for name in names:
        yield f"<td>{_cell(metadata.get(name, ''))}</td>"


def _cell(value: object) -> str:
    """Escape a value for HTML, on one line, with control characters as escapes."""
    from html import escape  # only notebooks need it

    text = " ".join(str(value).split())
    return escape(visible(text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}..."))
