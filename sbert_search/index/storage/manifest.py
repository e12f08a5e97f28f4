"""MANIFEST.json: the file that lists the content of an index; replacing it is the commit.

Line 1 is the sha256 of the rest; line 2 is JSON with sorted keys and no spaces.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.cache import typed_lru_cache
from sbert_search.base.folders import Entry, Folder
from sbert_search.config import UnknownSettingError, from_mapping, to_mapping
from sbert_search.errors import (
    CommitUnknown,
    ConfigError,
    CorruptIndex,
    IndexStoreError,
    NotAnIndex,
)
from sbert_search.index.settings import IndexSpec, LexicalSettings, Tuning
from sbert_search.index.settings import Metric as Metric
from sbert_search.index.settings import VectorType as VectorType
from sbert_search.records import RowCounts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NAME = "MANIFEST.json"
SHARDS = "shards.json"  # the manifest of a sharded index, whose folder has no MANIFEST.json
TEMPORARY = NAME + ".tmp"  # the new manifest, before a commit renames it
LOCK = "LOCK"
FOLDERS = ("seg", "del", "ann", "lex")
FORMAT = "sbert-search index"
VERSION = 8  # raised by each change of the format; only this version is read
MAX_BYTES = 64 << 20  # of the file; the rest of a longer file is not read, so its hash is wrong
OPEN_TRIES = 5  # attempts to open a state while compactions remove its files
MAX_ROWS = 1 << 62  # row numbers that an index may ever use
MAX_FILES = 10**11  # file numbers that an index may ever use
FIRST_SET = "v1"  # the set of vectors of a new index
SET_NAME = re.compile(r"v[1-9]\d{0,8}")
BM25 = "bm25"  # the set of postings of lexical search
FILE_NAME = re.compile(
    r"seg/\d{6,12}\.(docs\.arrow|vec\.npy|ids\.npy)|del/\d{6,12}\.npy|ann/\d{6,12}\.faiss"
    r"|lex/\d{6,12}\.((terms|pairs|lengths)\.npy|words\.arrow)|seg/\d{6,12}\.pack"
)

State = TypeVar("State")

ColumnType = Literal[
    "string", "int64", "float64", "bool", "timestamp", "date",
    "list[string]", "list[int64]", "list[float64]",
    "list[bool]", "list[timestamp]", "list[date]",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfCheck:
    """Sample texts with their vectors from the index's model, by which the model is recognised."""

    texts: tuple[str, ...] = ()
    vectors_base64: str = ""  # base64 of little-endian float32 (n_texts, dim)

    @classmethod
    def of(cls, texts: Sequence[str], vectors: NDArray[np.float32]) -> SelfCheck:
        """Make a check from texts and their vectors, float32 (n_texts, dim)."""
        data = np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        return cls(texts=tuple(texts), vectors_base64=base64.b64encode(data).decode("ascii"))

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors, float32 (n_texts, dim); (0, 0) without texts."""
        data = np.frombuffer(base64.b64decode(self.vectors_base64), "<f4")
        return data.reshape(len(self.texts), -1) if self.texts else data.reshape(0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorSettings:
    """The settings of one set of vectors: their model, how they are stored and how searched."""

    dim: int
    metric: Metric = "cosine"  # for ``cosine``, vectors are normalised when written
    dtype: VectorType = "float32"
    identity: Mapping[str, object] = field(default_factory=dict)  # of the model; any JSON object
    self_check: SelfCheck = SelfCheck()  # texts whose vectors a query's embedder must reproduce
    spec: IndexSpec = IndexSpec()  # noqa: RUF009 (frozen)
    # The measurement that chose the precision of the vectors, a `base.verdicts.Verdict`; empty: the
    # precision was given or is the only one.
    verdict: Mapping[str, object] = field(default_factory=dict)
    batch_tokens: int = 0  # tokens per batch that "auto" chose in a build on a CPU; 0: none
    # Mean cosine of unrelated texts, by which hybrid search maps the cosines of the model; 0: not
    # measured, as for vectors that were given without a model.
    unrelated_cosine: float = 0.0

    @property
    def digest(self) -> str:
        """Hash of what makes vectors comparable: their model, dimension, metric and type."""
        kind = [dict(self.identity), self.dim, self.metric, self.dtype]
        return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= 65_536:
            raise ConfigError(f"dim is {self.dim}; it must be from 1 to 65536.")
        if not -1 <= self.unrelated_cosine < 1:
            raise ConfigError(f"unrelated_cosine is {self.unrelated_cosine}; it must be below 1.")


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryModel:
    """A smaller model for queries, whose vectors lie in the space of one set of vectors.

    Attributes:
        vectors: Name of the set.
        identity: Hashes and settings of the model, a JSON object.
        cosine: Mean cosine of its vectors of stored passages with those of the set.
        retention: Quality of dense search as a share of that of the set's own model: by nDCG@10
            over judgements, or by the share of the first hits that both find; None: not measured.
        measured_on: What the retention was measured on.

    Example:
        >>> index = Index.from_texts(["a river", "a mill"], model="hashing")
        >>> index.add_query_model("hashing").measured_on
        'passages'
    """

    vectors: str
    identity: Mapping[str, object]
    cosine: float = 0.0
    retention: float | None = None
    measured_on: Literal["judgements", "queries", "passages"] = "passages"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """Name, size and hash of a file, as it was written.

    The small files of an update are written as one file, a pack. Their names have the name of the
    pack before a colon, as in ``seg/000012.pack:seg/000013.ids.npy``.
    """

    name: str
    size_bytes: int
    xxh3_128: str
    offset: int = 0  # of the first byte in the pack; 0: the file is in no pack

    def __post_init__(self) -> None:
        names = self.name.split(":")
        in_pack = len(names) == 2 and self.on_disk.endswith(".pack")
        if not (in_pack or len(names) == 1) or not all(map(FILE_NAME.fullmatch, names)):
            raise ConfigError(f"{self.name!r} is not a file name of an index.")
        if self.offset % files.PACK_ALIGNMENT or (self.offset > 0) != in_pack:
            raise ConfigError(f"{self.name!r} has the offset {self.offset}.")

    @classmethod
    def of(cls, file: files.NewFile) -> FileRecord:
        """Return the record of an index file that was just written."""
        assert isinstance(file.place, Entry)
        return cls(
            name=file.place.below,
            size_bytes=file.n_bytes,
            xxh3_128=file.digest,
            offset=file.offset,
        )

    @property
    def on_disk(self) -> str:
        """Name of the file on disk: `name` itself, or the pack that contains it."""
        return self.name.partition(":")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalRecord:
    """The postings of a segment: numbers of terms and of term-document pairs, and the files."""

    n_terms: int
    n_pairs: int
    n_large: int  # pairs whose counts are too large for them
    terms: FileRecord
    pairs: FileRecord
    lengths: FileRecord
    # List of words; None: the segment is small, or the file was damaged and is not made again yet.
    words: FileRecord | None = None

    @property
    def postings(self) -> tuple[FileRecord, ...]:
        """The files of the postings."""
        return self.terms, self.pairs, self.lengths

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files of the postings and of the words."""
        return (*self.postings, self.words) if self.words else self.postings


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorFiles:
    """The vectors of a segment in one set, and the FAISS index over them, if there is one."""

    file: FileRecord
    max_norm: float  # largest norm of a vector
    ann: FileRecord | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentRecord:
    """One segment: its rows, their counts, and its files."""

    row_start: int
    row_end: int  # excluded
    n_rows: int  # less than row_end - row_start if the segment lacks rows of the range
    n_docs: int
    columns: Mapping[str, ColumnType]
    docs: FileRecord
    ids: FileRecord
    vectors: Mapping[str, VectorFiles]  # by the name of the set; an unused set may be absent
    postings: Mapping[str, LexicalRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sound = 0 <= self.row_start < self.row_end and 0 < self.n_docs <= self.n_rows
        if not sound or self.n_rows > self.row_end - self.row_start:
            raise ConfigError(f"the counts of {self.docs.name} are inconsistent.")

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """All files of the segment."""
        vectors = (stored.file for stored in self.vectors.values())
        return (self.docs, *vectors, self.ids, *self.derived)

    @property
    def derived(self) -> tuple[FileRecord, ...]:
        """The files of the segment that can be rebuilt from its other files."""
        anns = (stored.ann for stored in self.vectors.values() if stored.ann)
        return (*anns, *(file for words in self.postings.values() for file in words.files))

    @property
    def lexical(self) -> LexicalRecord | None:
        """The postings of lexical search."""
        return self.postings.get(BM25)

    def with_lexical(self, record: LexicalRecord) -> SegmentRecord:
        """Return this segment with postings for lexical search."""
        return dataclasses.replace(self, postings={**self.postings, BM25: record})

    def with_ann(self, name: str, file: FileRecord) -> SegmentRecord:
        """Return this segment with a FAISS index over its vectors of a set."""
        stored = dataclasses.replace(self.vectors[name], ann=file)
        return dataclasses.replace(self, vectors={**self.vectors, name: stored})

    def without(self, names: Collection[str]) -> SegmentRecord:
        """Return this segment without some derived files."""
        vectors = {
            name: dataclasses.replace(v, ann=None) if v.ann and v.ann.name in names else v
            for name, v in self.vectors.items()
        }
        postings = {
            name: dataclasses.replace(p, words=None) if p.words and p.words.name in names else p
            for name, p in self.postings.items()
            if not any(file.name in names for file in p.postings)
        }
        return dataclasses.replace(self, vectors=vectors, postings=postings)


@dataclass(frozen=True, kw_only=True, slots=True)
class TombstoneRecord:
    """Rows that one commit deleted or replaced, and how many documents they belong to."""

    n_rows: int
    n_docs: int
    file: FileRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildCursor:
    """Progress of a build in its sources."""

    source_sha256: str  # of the content of all sources together
    rows: int  # input rows processed since the start of the first source
    # How the sources are read and embedded, any JSON object. A build resumes an interrupted one
    # only if these and the settings of the store are equal.
    settings: Mapping[str, object] = field(default_factory=dict)
    counts: RowCounts = RowCounts()  # noqa: RUF009 (frozen)
    finished: bool = False
    # Absolute path of the folder whose files are one document each. The id of such a document is
    # the file's path below this folder. None: the sources have no such files.
    root: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Filling:
    """The vectors that a migration has made so far for the one segment that it is working on."""

    vectors: str  # name of the set
    docs: str  # docs file of the segment
    pieces: tuple[FileRecord, ...]  # vectors of the first rows, one file after the other
    rows: tuple[int, ...]  # number of rows of each piece
    max_norm: float  # largest norm of a vector

    @property
    def n_rows(self) -> int:
        """Number of rows that have their vectors."""
        return sum(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One state of an index.

    Searches and updates use the set of vectors ``active``, which has a vector for each row. While a
    migration fills another set, and until it is finished, some segments lack the other set. The
    names of sets are v1, v2 and so on: a set behind the active one is being filled, one before it
    belongs to the model before.
    """

    format: str = FORMAT
    version: int = VERSION
    generation: int = 0  # commits so far
    next_row: int = 0
    next_file: int = 0
    active: str = FIRST_SET
    vectors: Mapping[str, VectorSettings]  # by the name of the set
    postings: Mapping[str, LexicalSettings] = field(default_factory=dict)  # by the name of the set
    query_models: Mapping[str, QueryModel] = field(default_factory=dict)  # by set and name, v1/fast
    columns: Mapping[str, ColumnType] = field(default_factory=dict)
    segments: tuple[SegmentRecord, ...] = ()
    tombstones: tuple[TombstoneRecord, ...] = ()
    build: BuildCursor | None = None
    tuning: Tuning | None = None
    filling: Filling | None = None
    # Digests of the sets that were active before, oldest first. A reader that has one of them open
    # may move on to this state.
    earlier: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        models = {model.vectors for model in self.query_models.values()}
        for name in self.vectors:
            if not SET_NAME.fullmatch(name):
                raise ConfigError(f"{name!r} is not the name of a set of vectors.")
        for name in sorted({self.active, *models} - self.vectors.keys()):
            raise ConfigError(f"there is no set of vectors {name!r}.")
        for segment in self.segments:
            unknown = segment.vectors.keys() - self.vectors, segment.postings.keys() - self.postings
            if any(unknown) or self.active not in segment.vectors:
                raise ConfigError(f"the sets of {segment.docs.name} are not those of the index.")
        ends = [0, *(segment.row_end for segment in self.segments)]
        for segment, end in zip(self.segments, ends, strict=False):
            if segment.row_start < end:
                raise ConfigError(f"the rows of {segment.docs.name} are out of order.")
        if ends[-1] > self.next_row:
            raise ConfigError(f"next_row is {self.next_row}, below the rows in use.")
        if self.next_row > MAX_ROWS or not 0 <= self.next_file <= MAX_FILES:
            raise ConfigError(
                f"next_row is {self.next_row} and next_file is {self.next_file}; at least one is "
                "out of range."
            )

    @classmethod
    def new(
        cls,
        settings: VectorSettings,
        columns: Mapping[str, ColumnType] | None = None,
        *,
        lexical: LexicalSettings | None = None,
        build: BuildCursor | None = None,
        next_row: int = 0,
    ) -> Manifest:
        """Make the state of an index without documents; ``lexical`` None: without postings."""
        return cls(
            vectors={FIRST_SET: settings},
            postings={BM25: lexical} if lexical else {},
            columns=dict(columns or {}),
            build=build,
            next_row=next_row,
        )

    @property
    def settings(self) -> VectorSettings:
        """The settings of the active set of vectors."""
        return self.vectors[self.active]

    @property
    def lexical(self) -> LexicalSettings | None:
        """The settings of lexical search; None: the index has no postings for it."""
        return self.postings.get(BM25)

    @property
    def active_query_models(self) -> Mapping[str, QueryModel]:
        """The query models whose vectors lie in the space of the active set."""
        models = self.query_models.items()
        return {_bare(key): model for key, model in models if model.vectors == self.active}

    @property
    def pending(self) -> str | None:
        """The set of vectors that a migration fills; None: no migration is under way."""
        return next((name for name in self.vectors if _number(name) > _number(self.active)), None)

    @property
    def previous(self) -> str | None:
        """The set of vectors of the model before; None: there is none, or it was dropped."""
        return next((name for name in self.vectors if _number(name) < _number(self.active)), None)

    def with_settings(self, settings: VectorSettings) -> Manifest:
        """Return this state with other settings of the active set of vectors."""
        return dataclasses.replace(self, vectors={**self.vectors, self.active: settings})

    def with_query_model(self, name: str, model: QueryModel | None) -> Manifest:
        """Return a copy in which a query model of the active set is replaced; None removes it."""
        models = {
            key: other
            for key, other in self.query_models.items()
            if other.vectors != self.active or _bare(key) != name
        }
        if model is not None:
            models[f"{self.active}/{name}"] = model
        return dataclasses.replace(self, query_models=models)

    def with_lexical(self, settings: LexicalSettings | None) -> Manifest:
        """Return this state with other settings of lexical search, or without it."""
        others = {name: other for name, other in self.postings.items() if name != BM25}
        postings = others if settings is None else {**others, BM25: settings}
        return dataclasses.replace(self, postings=postings)

    @property
    def n_rows(self) -> int:
        """Number of live rows: those neither deleted nor replaced."""
        return sum(s.n_rows for s in self.segments) - self.n_dead_rows

    @property
    def n_dead_rows(self) -> int:
        """Number of rows that are deleted or replaced but still take space."""
        return sum(tombstone.n_rows for tombstone in self.tombstones)

    @property
    def n_docs(self) -> int:
        """Number of live documents: those neither deleted nor replaced."""
        return sum(s.n_docs for s in self.segments) - sum(t.n_docs for t in self.tombstones)

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Every file that this state refers to."""
        of_segments = (file for segment in self.segments for file in segment.files)
        pieces = self.filling.pieces if self.filling else ()
        return (*of_segments, *pieces, *(tombstone.file for tombstone in self.tombstones))

    @property
    def faiss_files(self) -> tuple[FileRecord, ...]:
        """The FAISS files of the active set of vectors."""
        stored = (segment.vectors[self.active] for segment in self.segments)
        return tuple(vectors.ann for vectors in stored if vectors.ann)

    @property
    def derived(self) -> tuple[FileRecord, ...]:
        """The files of this state that can be rebuilt from its other files."""
        return tuple(file for segment in self.segments for file in segment.derived)

    def without(self, names: Collection[str]) -> Manifest:
        """Return this state without some derived files."""
        segments = tuple(segment.without(names) for segment in self.segments)
        return dataclasses.replace(self, segments=segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of this state."""
        return sum(file.size_bytes for file in self.files)


def _bare(key: str) -> str:
    """Return the name of a query model without its set, which keys of older indexes lack."""
    return key.rpartition("/")[2]


def _number(name: str) -> int:
    return int(name[1:])


def encode(state: DataclassInstance) -> bytes:
    """Serialise a manifest of an index or of a sharded index."""
    body = (json.dumps(to_mapping(state), sort_keys=True, separators=(",", ":")) + "\n").encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def open_folder(path: Path) -> Folder:
    """Open the folder of an index; `NotAnIndex` if the path is absent or not a folder."""
    try:
        return Folder.open(path)
    except FileNotFoundError as error:
        raise NotAnIndex(
            f"{path} holds no index: there is no such folder. Make one with `sbert-search index "
            "build`."
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def read(folder: Folder) -> Manifest:
    """Read and check the manifest of an index; `NotAnIndex` if the folder has none."""
    return decode(read_bytes(folder, NAME))


def read_bytes(folder: Folder, name: str) -> bytes:
    """Read the file that records a folder's state; `NotAnIndex` if the folder has none."""
    try:
        return bytes(files.map_file(folder / name)[: MAX_BYTES + 1])
    except FileNotFoundError as error:
        raise NotAnIndex(
            f"{folder} holds no index: it has no {name}. Make one with `sbert-search index build`."
        ) from error
    except OSError as error:
        raise _unreadable(folder.path, error) from error


def _unreadable(path: Path, error: OSError) -> IndexStoreError:
    if files.is_fault_of_file(error):
        return NotAnIndex(f"{path} holds no index that can be read: {error}.")
    return IndexStoreError(f"{path} cannot be read: {error}.")


@typed_lru_cache(2)  # a refresh of an unchanged index then costs no parsing
def decode(data: bytes) -> Manifest:
    """Parse the bytes of a manifest, and check their hash and version."""
    return parse(data, NAME, Manifest, FORMAT, VERSION)


def parse(data: bytes, name: str, kind: type[State], form: str, version: int) -> State:
    """Parse a state of the given format and version, and check its hash."""
    stated, _, body = data.partition(b"\n")
    actual = hashlib.sha256(body).hexdigest()
    if stated != actual.encode():
        raise CorruptIndex(name, f"sha256 {stated[:64].decode('ascii', 'replace')}", actual)
    try:
        values = json.loads(body)
        _check_version(values, name, form, version)
        return from_mapping(kind, values)
    except UnknownSettingError as error:
        raise _of_another_version(
            name, f"has fields that this version does not know: {error}", newer=True
        ) from error
    except (ValueError, RecursionError, ConfigError) as error:
        reason = str(error).rstrip(".")
        raise CorruptIndex(name, "a manifest of an index", f"this: {reason}") from error


def _check_version(values: object, name: str, form: str, version: int) -> None:
    if not isinstance(values, dict) or values.get("format") != form:
        raise ConfigError("it is in no known format")
    found = values.get("version")
    if not isinstance(found, int) or found < 1:
        raise ConfigError(f"its version is {found!r}")
    if found != version:
        what = f"has format version {found}, and this version reads {version}."
        raise _of_another_version(name, what, newer=found > version)


def _of_another_version(name: str, what: str, *, newer: bool) -> IndexStoreError:
    made = "version of sbert-search made this index."
    remedy = (
        f"A newer {made} Install that version, or build the index again with this one."
        if newer
        else f"An earlier {made} Export it with the version that made it (`sbert-search index "
        "export`), and build it again with this one."
    )
    return IndexStoreError(f"{remedy} {name} {what}")


def write(
    folder: Folder,
    state: DataclassInstance,
    *,
    name: str = NAME,
    ready: Callable[[], object] | None = None,
) -> None:
    """Commit a new state by replacing the file that records it.

    ``ready`` is called right before the replacement; if it raises, the old state stays. It also
    stays after `OSError`; after `CommitUnknown`, the old or the new state holds.
    """
    try:
        files.replace_file(folder / name, encode(state), ready=ready)
    except files.ReplaceUnknown as error:
        raise CommitUnknown(
            f"{folder}: the commit failed at its last step, so the old or the new state may hold "
            f"({error}). Both are whole: open the index again to see which one it is."
        ) from error
