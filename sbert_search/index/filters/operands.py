"""Read the operands of a filter: a column, or lower() or upper() of a column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from sbert_search.config import unknown_name
from sbert_search.index.filters.syntax import FilterText, shortened
from sbert_search.index.storage.manifest import ColumnType

# Prefixes that tell a metadata column from the document's own field of the same name.
METADATA, OWN = "meta.", "own."

_CASES = {"lower": pc.utf8_lower, "upper": pc.utf8_upper}
_EXAMPLES = {"string": "'x'", "bool": "TRUE", "date": "'2024-12-31'", "timestamp": "'2024-12-31'"}


@dataclass(frozen=True, slots=True)
class Operand:
    """A column of a condition, in lower or upper case if the condition says so.

    Attributes:
        name: Name of the column in the condition.
        kind: Type of the column.
        case: The function around the column; "": none.
    """

    name: str
    kind: ColumnType
    case: Literal["", "lower", "upper"] = ""

    @property
    def item(self) -> ColumnType | None:
        """Type of the values of a list column; None for any other column."""
        return _ITEMS.get(self.kind)

    def values(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return the values of a column that is no list, with the case changed if asked for."""
        return self.cased(columns[self.name])

    def cased(self, texts: pa.Array) -> pa.Array:
        """Apply `case` to texts, by Unicode's simple case mapping of single characters."""
        return _CASES[self.case](texts) if self.case else texts


class Columns:
    """The columns that a condition can name.

    Args:
        text: The condition, for errors.
        types: Types of the columns by their names in a condition.
        ambiguous: Names of metadata columns that are also fields of every document.
        colliding: Names of metadata columns that equal the prefixed name of another column. If
            "title" is a metadata column, a metadata column "meta.title" or "own.title" collides.

    Attributes:
        used: The columns that were read, with their types.
    """

    def __init__(
        self,
        text: FilterText,
        types: Mapping[str, ColumnType],
        ambiguous: Collection[str],
        colliding: Collection[str],
    ) -> None:
        self._refuse, self._types = text.refuse, types
        self._ambiguous, self._colliding = ambiguous, colliding
        self.used: dict[str, ColumnType] = {}

    def read(self, node: exp.Expr) -> Operand:
        """Return the column that a node names.

        Raises:
            QueryError: The node is no column, the column is unknown, its name is ambiguous, or
                lower() or upper() is applied to a column that is no text.
        """
        if isinstance(node, exp.Lower | exp.Upper):
            operand = self.read(node.this)
            if operand.case or "string" not in (operand.kind, operand.item):
                self._refuse(node.this, f"{node.key}() needs a text column")
            return Operand(
                operand.name,
                operand.kind,
                "lower" if isinstance(node, exp.Lower) else "upper",
            )
        if not isinstance(node, exp.Column):
            self._refuse(node, "a comparison needs the name of a column here")
        name = ".".join(part.name for part in node.parts)
        self._require_known(name, node)
        self.used[name] = self._types[name]
        return Operand(name, self._types[name])

    def read_scalar(self, node: exp.Expr) -> Operand:
        """Return the column that a node names, which must not be a list.

        Raises:
            QueryError: It is a list; the message says how to write the condition. Or as for `read`.
        """
        operand = self.read(node)
        if operand.item:
            value, column = _EXAMPLES.get(operand.item, "5"), shortened(node.sql())
            self._refuse(
                node,
                f"the column {operand.name!r} is a list; write {value} IN {column} for the lists "
                "that contain a value",
            )
        return operand

    def _require_known(self, name: str, node: exp.Column) -> None:
        if name not in self._types:
            shown = shortened(name)
            hint = unknown_name(shown, shown, self._types, "column").rstrip(".")
            if node.this.args.get("quoted") or node.arg_key in _VALUES:
                hint += f"; a text is written in single quotes, '{shown}'"
            self._refuse(node, hint)
        if name in self._ambiguous:
            self._refuse(
                node,
                f"{name!r} is both a metadata column and a field of every document; "
                f"write {METADATA}{name} or {OWN}{name}",
            )
        if name in self._colliding:
            self._refuse(
                node,
                f"{name!r} is a metadata column, and also the way to write the column "
                f"{name.partition('.')[2]!r}; rename one of them in the data",
            )


# Arguments of a node that mostly hold a value. An unknown name there may be a text without single
# quotes.
_VALUES = ("expression", "expressions", "low", "high")
_ITEMS: Mapping[str, ColumnType] = {
    "list[string]": "string",
    "list[int64]": "int64",
    "list[float64]": "float64",
    "list[bool]": "bool",
    "list[timestamp]": "timestamp",
    "list[date]": "date",
}
