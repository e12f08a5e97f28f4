"""What an export writes: a state of an index, names of columns, and code that embeds a question."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from sbert_search.base.progress import note, progress
from sbert_search.config import unknown_name
from sbert_search.errors import ConfigError
from sbert_search.exchange.passages import OWN, Passages, read_passages
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.columns import PREFIX, unique_names
from sbert_search.index.storage.manifest import ColumnType, Metric
from sbert_search.models.loading.identity import ModelIdentity

Target = Literal["parquet", "faiss", "qdrant", "milvus", "opensearch"]
TARGETS: tuple[Target, ...] = get_args(Target)

VECTOR, ID = "vector", "id"  # names of two more fields, in addition to `OWN`
_NO_NAME = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        to: The engine or format.
        documents: Number of documents.
        passages: Number of passages: the rows, points or entities in the other engine.
        files: The files that were written.
        url: Where the passages were uploaded, without a password; None: nothing was uploaded.
        name: Name of the collection or of the OpenSearch index; "" for a file format.
        resumed: Number of the passages that an interrupted upload had written before.
        fields: Name of each metadata column in the other engine, by its name in the index.
        query: Python code that searches the files or the collection for a question. It ranks
            passages as the index does if the index is exact.
        seconds: Time of the export.

    Example:
        >>> export_index("my.index", "parquet", "out.parquet").fields
        {'year': 'year'}
    """

    to: Target
    documents: int
    passages: int
    files: tuple[Path, ...] = ()
    url: str | None = None
    name: str = ""
    resumed: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    query: str
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportPlan:
    """A state of an index, and the names under which its columns are written."""

    snapshot: Snapshot
    identity: ModelIdentity  # of the model that made the vectors
    fields: Mapping[str, str]  # name of each exported column in the engine, by that in the index

    @classmethod
    def of(
        cls, snapshot: Snapshot, columns: Sequence[str] | None, *, words_only: bool
    ) -> ExportPlan:
        """Choose the columns (all by default) and their names.

        With ``words_only``, each character of a name that is no ASCII letter, digit or underscore
        is replaced by an underscore. A name that then begins with no letter, or is that of a field
        of each passage, gets the prefix ``meta_``.
        """
        chosen = list(snapshot.columns if columns is None else dict.fromkeys(columns))
        for name in chosen:
            if name not in snapshot.columns:
                hint = unknown_name(name, name, snapshot.columns, "metadata column")
                raise ConfigError(f"columns: {hint}")
        own = {ID, VECTOR, *OWN}
        fields = _words(chosen, own) if words_only else unique_names(chosen, own)
        for name, stored in fields.items():
            if name != stored:
                note(f"The column {name!r} is written as {stored!r}.")
        identity = ModelIdentity.from_mapping(snapshot.settings.identity)
        return cls(snapshot=snapshot, identity=identity, fields=fields)

    @property
    def metric(self) -> Metric:
        """How vectors are compared."""
        return self.snapshot.settings.metric

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return self.snapshot.settings.dim

    @property
    def exact(self) -> bool:
        """Whether the index compares a query with all vectors."""
        return self.snapshot.settings.spec.factory == "Flat"

    @property
    def kinds(self) -> dict[str, ColumnType]:
        """Type of each exported metadata column, by its name in the other engine."""
        return {stored: self.snapshot.columns[name] for name, stored in self.fields.items()}

    def passages(self, done: int = 0) -> Iterator[Passages]:
        """Yield the passages after the first ``done`` in blocks, with columns under new names."""
        stored = {PREFIX + name: name_there for name, name_there in self.fields.items()}
        total = self.snapshot.n_rows
        with progress("Exporting", total - done, "passages") as advance:
            for block in read_passages(self.snapshot, list(self.fields), skip=done):
                names = [stored.get(name, name) for name in block.table.column_names]
                yield Passages(block.rows, block.table.rename_columns(names), block.vectors)
                advance(len(block.rows))


def _words(columns: Sequence[str], own: Collection[str]) -> dict[str, str]:
    """Return a unique name of ASCII letters, digits and underscores for each column."""
    names: dict[str, str] = {}
    for name in columns:
        word = _NO_NAME.sub("_", name)
        if not word[:1].isalpha() or word in own:
            word = f"meta_{word}"
        stored, number = word, 2
        while stored in names.values() or (stored != name and stored in columns):
            stored, number = f"{word}_{number}", number + 1
        names[name] = stored
    return names


QUESTION = "your question"


def question_vector(plan: ExportPlan) -> str:
    """Return code that sets ``vector`` to the vector of a question, a list of floats.

    If the index has no model, the code sets zeros, with a comment that asks for a vector.
    """
    identity = plan.identity
    if not identity.is_model:
        return (
            "# The index has no model. Put the vector of your question here.\n"
            f"vector = [0.0] * {plan.dim}\n"
        )
    if identity.engine == "hashing":
        opened = (
            "from sbert_search.embed.hashing import HashingEmbedder\n\n"
            f"model = HashingEmbedder({plan.dim})\n"
        )
    else:
        named = {name: text for name, text in identity.prompts.items() if name}
        prompts = f", prompts={named!r}" if named else ""
        opened = (
            f"from sbert_search import Embedder\n\nmodel = Embedder({identity.name!r}{prompts})\n"
        )
    prompt = identity.prompts.get("query") or identity.prompts.get("")
    said = f"# The model puts {prompt!r} before a question.\n" if prompt else ""
    return f"{opened}{said}vector = model.encode_query([{QUESTION!r}])[0].tolist()\n"
