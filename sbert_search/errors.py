"""The errors that a caller may want to catch.

SbertSearchError
├── ConfigError            a setting is unknown or has an invalid value
├── CorpusError            a data source cannot be read, or contains a bad row
├── ModelError             a model cannot be loaded, or computes wrong values on this device
│   └── WeightsError       the weights are damaged or do not match the model's configuration
├── CheckpointError        a training checkpoint is unusable or belongs to another run
├── IndexStoreError        an index on disk cannot be used
│   ├── NotAnIndex         the folder contains no index
│   ├── CorruptIndex       a file differs from what the manifest recorded
│   ├── UnfinishedBuild    the build of the index is not complete
│   ├── IndexLocked        another process is writing to the index
│   ├── CommitUnknown      a commit failed at its last step: reopen to see its outcome
│   ├── ModelMismatch      the index was built with another model
│   └── NoLexicalData      the index was built without data for lexical (keyword) search
├── QueryError             a query, a filter or a search setting is wrong
├── ExchangeError          another search engine refused an upload or could not be reached
├── EvaluationError        an evaluation or a comparison of two runs is impossible
├── ClusterError           a cluster cannot be used, or has lost the machines that it needs
│   └── LostShards         some shards of an index are on no running process of the cluster
└── TrainingError          training stopped: a value is not finite, or data cannot be used

Each message names what failed, the bad value and a remedy. For input data it also names the file
and the line. A manifest is the file that lists an index's files with their sizes and checksums.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Self

offered: AbstractSet[str] | None = None
"""The options of the running command, as `base.options.offer_options` said; None: none runs."""

# What stands in Python for an option that messages name: a keyword, mostly of the same name.
_SAME = (
    "batch-tokens calibrate chunk-tokens columns data device dtype encoding engine exclude "
    "group-by ids max-minutes metadata-fields metric mode model name new-columns on-error "
    "on-truncate out precision replicas rerank-depth sts table text-as url workers"
)
_FLAGS = "allow-empty allow-inexact moved partial replace resume"
_KEYWORDS = {
    **{name: name.replace("-", "_") for name in _SAME.split()},
    **{name: name.replace("-", "_") + "=True" for name in _FLAGS.split()},
    "column-type": "column_types",
    "id-field": "fields=FieldNames(id=...)",
    "language": "language",
    "memory": "the limit of set_memory_limit",
    "runner ray": "runner=RayRunner()",
    "shard-timeout": "shard_timeout_s",
    "shards": "n_shards",
    "spec": "spec=IndexSpec(...)",
    "sql": "query",
    "text2-field": "text2",
    "text-field": "fields=FieldNames(text=...)",
    "title-field": "fields=FieldNames(title=...)",
    "title-weight": "lexical=LexicalSettings(title_weight=...)",
    "vector-field": "vectors",
    "wait": "wait_s",
}
_VALUES = (
    "skip|stop|error|cp1252|cpu|cuda|fp32|bf16|int8|native|onnx|sentence-transformers|chunk|warn|dense|"
    "file|FILE|N|path"
)
_NAMES = "|".join(_KEYWORDS)
_OPTION = (  # compiled when it is first used
    r"--set (?='?[\w.]+[ =])"
    r"| \(--[\w-]+(?: \w+)?\)|(?<= )-(?=k )"  # after a keyword of Python; -k
    r"|(`[^`]*`)"  # a command
    rf"|--(?:{_NAMES})(?: \S+)? \((\w+=[^()]*)\)"  # the message itself names the keyword
    rf"|--({_NAMES})(?![\w-])( (?:{_VALUES})\b)?"
)


def in_python(message: str) -> str:
    """Replace options of commands in a message by the keywords that Python has for them."""

    def keyword(found: re.Match[str]) -> str:
        command, named, option, value = found.groups()
        if option is None:
            return command or named or ""
        if value is None:
            return _KEYWORDS[option]
        return f"{_KEYWORDS[option]}={value.strip() if value.isupper() else repr(value.strip())}"

    return re.sub(_OPTION, keyword, message)


def install(extra: str = "") -> str:
    """Return the command that installs an extra ("": what every installation has).

    The package is on no registry, so that only a clone of its repository can be installed.
    """
    wanted = f"'.[{extra}]'" if extra else "."
    return f"python -m pip install -e {wanted} in the clone of sbert-search"


class SbertSearchError(Exception):
    """Base class of all errors that this package raises on purpose.

    Outside of commands, messages name keywords of Python in place of options.

    Example:
        >>> try:
        ...     SearchOptions(k=0)
        ... except SbertSearchError as error:
        ...     print(error)
        k is 0; it must be at least 1.
    """

    def __new__(cls, *args: object, **_: object) -> Self:
        """Remember whether the error is made in a command, which has ended when it is shown."""
        made = super().__new__(cls, *args)
        made.__dict__["of_command"] = offered is not None
        return made

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.__dict__.get("of_command") else in_python(message)

    def __reduce__(self) -> tuple[object, ...]:
        """Let pickle copy the error without a call of ``__init__``, whose parameters differ."""
        return _made, (type(self), *self.args), self.__dict__


def _made(kind: type[SbertSearchError], *args: object) -> SbertSearchError:
    return kind.__new__(kind, *args)


class ConfigError(SbertSearchError):
    """A setting is unknown or has an invalid value.

    Example:
        >>> IndexSpec(nprobe=0)
        Traceback (most recent call last):
        sbert_search.errors.ConfigError: index.nprobe is 0; it must be from 1 to 1,048,576.
    """


class CorpusError(SbertSearchError):
    """A source of documents or pairs cannot be read, or contains a bad row.

    Example:
        >>> Index.build("nothing.jsonl", model="hashing")
        Traceback (most recent call last):
        sbert_search.errors.CorpusError: nothing.jsonl: cannot be read: No such file or directory.
    """


class ModelError(SbertSearchError):
    """A model cannot be loaded, or computes wrong values on this device.

    Example:
        >>> Embedder(Path("notes"), device="cpu")
        Traceback (most recent call last):
        sbert_search.errors.ModelError: notes holds no config.json; name a model folder.
    """


class WeightsError(ModelError):
    """The weights are damaged, or do not match the configuration of the model."""


class CheckpointError(SbertSearchError):
    """A training checkpoint is unusable, or belongs to another run."""


class IndexStoreError(SbertSearchError):
    """An index on disk cannot be used."""


class NotAnIndex(IndexStoreError):  # noqa: N818 (the name states a fact, without "Error")
    """The folder contains no index.

    Example:
        >>> Index.open("nothing.index")
        Traceback (most recent call last):
        sbert_search.errors.NotAnIndex: nothing.index holds no index: there is no such folder. ...
    """


class CorruptIndex(IndexStoreError):  # noqa: N818
    """A file of an index differs from what its manifest recorded."""

    def __init__(self, file: str, expected: str, got: str, remedy: str = "") -> None:
        self.file, self.expected, self.got = file, expected, got
        self.remedy = remedy or "Restore the file from a backup, or build the index again."
        super().__init__(f"{file} is corrupt: expected {expected}, got {got}. {self.remedy}")


class UnfinishedBuild(IndexStoreError):  # noqa: N818
    """The build of an index is not complete: it is still running, or it was interrupted."""


class IndexLocked(IndexStoreError):  # noqa: N818
    """Another process is writing to the index."""


class CommitUnknown(IndexStoreError):  # noqa: N818
    """A commit failed while it replaced the manifest; reopen the index to see if it took effect."""


class ModelMismatch(IndexStoreError):  # noqa: N818
    """The index was built with a different model than the one used to search it.

    Example:
        >>> SearchEngine("my.index", "my-model").search("river")
        Traceback (most recent call last):
        sbert_search.errors.ModelMismatch: The index was built with hashing, and my-model is ...
    """


class NoLexicalData(IndexStoreError):  # noqa: N818
    """The index was built without the data that a lexical (keyword) search needs.

    Example:
        >>> Index.open("my.index").set_lexical(None)
        >>> SearchEngine("my.index").search("river", mode="lexical")
        Traceback (most recent call last):
        sbert_search.errors.NoLexicalData: ...
    """


class QueryError(SbertSearchError):
    """A query, a filter or a search setting is wrong.

    Example:
        >>> SearchOptions(k=0)
        Traceback (most recent call last):
        sbert_search.errors.QueryError: k is 0; it must be at least 1.
    """


class ExchangeError(SbertSearchError):
    """An upload to another search engine failed, or the engine has a wrong number of passages."""


class EvaluationError(SbertSearchError):
    """An evaluation or a comparison of two runs is impossible."""


class ClusterError(SbertSearchError):
    """A cluster cannot be reached or used, or too many of its processes have ended."""


class LostShards(ClusterError):  # noqa: N818
    """Some shards of an index are on no running process of the cluster."""


class TrainingError(SbertSearchError):
    """Training stopped: a value is not finite, or the data cannot be used."""
