"""Every error a caller may want to catch.

SbertSearchError
├── ConfigError            a setting is unknown or has a value it cannot have
├── CorpusError            a source of documents or pairs cannot be read, or holds a bad row
├── ModelError             a model folder cannot be loaded, or gives wrong numbers
│   └── WeightsError       weights that do not fit the model they claim to be
├── CheckpointError        a training checkpoint is unusable or belongs to another run
├── IndexStoreError        an index on disk cannot be used
│   ├── NotAnIndex         the folder holds no index
│   ├── CorruptIndex       a file differs from what the manifest recorded
│   ├── IndexLocked        another process is writing
│   ├── CommitUnknown      a commit failed after the point of no return: reopen to see
│   ├── ModelMismatch      the index was built with another model
│   └── NoLexicalData      the index was made without what a search by words needs
├── QueryError             a query, a filter or a search setting is wrong
├── EvaluationError        a task, a run or a report cannot be evaluated
└── TrainingError          training stopped: numbers that are not finite, data that do not fit

Messages name the thing, its value and the next step; for data also file and line.
"""

from __future__ import annotations


class SbertSearchError(Exception):
    """Root of all errors that this package raises on purpose."""


class ConfigError(SbertSearchError):
    """A setting is unknown or has a value it cannot have."""


class CorpusError(SbertSearchError):
    """A source of documents or pairs cannot be read, or holds a bad row."""


class ModelError(SbertSearchError):
    """A model cannot be loaded, or gives wrong numbers on this device."""


class WeightsError(ModelError):
    """Weights do not fit the model they claim to be."""


class CheckpointError(SbertSearchError):
    """A training checkpoint is unusable, or belongs to another run."""


class IndexStoreError(SbertSearchError):
    """An index on disk cannot be used."""


class NotAnIndex(IndexStoreError):  # noqa: N818 (reads as the fact it states)
    """The folder holds no index."""


class CorruptIndex(IndexStoreError):  # noqa: N818
    """A file of an index differs from what its manifest recorded."""

    def __init__(self, file: str, expected: str, got: str, remedy: str = "") -> None:
        self.file, self.expected, self.got = file, expected, got
        remedy = remedy or "Restore the file from a snapshot, or build the index again."
        super().__init__(f"{file} is corrupt: expected {expected}, got {got}. {remedy}")


class IndexLocked(IndexStoreError):  # noqa: N818
    """Another process is writing to the index."""


class CommitUnknown(IndexStoreError):  # noqa: N818
    """A commit failed at or after the manifest swap: reopen the index to see which state holds."""


class ModelMismatch(IndexStoreError):  # noqa: N818
    """The index was built with another model than the one asked to search it."""


class NoLexicalData(IndexStoreError):  # noqa: N818
    """The index was made without what a search by words needs."""


class QueryError(SbertSearchError):
    """A query, a filter or a search setting is wrong."""


class EvaluationError(SbertSearchError):
    """A task, a run or a report cannot be evaluated."""


class TrainingError(SbertSearchError):
    """Training stopped on purpose: numbers that are not finite, or data that do not fit."""
