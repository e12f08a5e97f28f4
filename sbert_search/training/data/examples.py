"""What a sentence encoder learns from: rows of texts with a label or a score, read from files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from sbert_search.config import unknown_name
from sbert_search.corpus.beir import read_qrels, read_queries
from sbert_search.corpus.documents import CorpusReader
from sbert_search.corpus.pairs import COLUMNS, read_pairs
from sbert_search.corpus.sources import classify, field_names
from sbert_search.corpus.triplets import negative_columns, read_groups, read_triplets
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document
from sbert_search.runtime.progress import note
from sbert_search.training.data.section_triplets import section_triplets

Form = Literal["pairs", "nli", "triplets", "sections", "groups", "texts", "classes", "beir"]
TargetKind = Literal["nothing", "label", "score"]

FORMS_BY_TARGET: Mapping[TargetKind, tuple[Form, ...]] = {
    "nothing": get_args(Form),
    "label": ("pairs", "classes"),
    "score": ("pairs",),
}
"""Forms whose rows have a target."""

ENTAILMENT, CONTRADICTION = "entailment", "contradiction"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnNames:
    """Columns of the files; None: found by usual names, see `corpus.pairs`, `corpus.triplets`."""

    text1: str | None = None  # or the anchor of a triplet
    text2: str | None = None  # or its positive
    negative: str | None = None
    texts: str | None = None  # a list of texts that mean the same
    score: str | None = None
    label: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which files, and what their rows are."""

    train: Path | tuple[Path, ...]
    dev: Path | None = None
    weights: tuple[float, ...] = ()  # of each file: how often an epoch has its rows; 0.5: half
    form: Form = "pairs"
    columns: ColumnNames = field(default_factory=ColumnNames)
    labels: tuple[str, ...] = ()  # classes, in order; none: those found, sorted
    rename: Mapping[str, str] = field(default_factory=dict)  # a file's label to one of `labels`
    skip_labels: tuple[str, ...] = ("-",)  # of rows that are passed over
    score_range: tuple[float, float] = (0.0, 5.0)  # becomes 0 to 1
    split: str = "train"  # of the judgements of a BEIR folder
    per_document: int = 4  # triplets made of the sections of one document
    limit: int | None = None  # rows taken of each file, from its start

    def __post_init__(self) -> None:
        if self.weights and len(self.weights) != len(self.files):
            raise ConfigError(
                f"data.weights has {len(self.weights)} numbers for {len(self.files)} files; "
                "give one for each file of data.train."
            )
        if any(weight <= 0 for weight in self.weights):
            raise ConfigError(f"data.weights is {self.weights}; every weight must be above 0.")
        if not self.score_range[0] < self.score_range[1]:
            raise ConfigError(f"data.score_range is {self.score_range}; it must rise.")

    @property
    def files(self) -> tuple[Path, ...]:
        """The training files."""
        return (self.train,) if isinstance(self.train, Path) else self.train


@dataclass(frozen=True, slots=True)
class Example:
    """Texts that a loss compares, with what is known of them.

    Attributes:
        texts: Anchor first.
        target: A label, a score from 0 to 1, or None.
        source: ``file:line``.
        group: Texts of one group belong together, whatever their rows; "": only those of the row.
    """

    texts: tuple[str, ...]
    target: str | float | None
    source: str
    group: str = ""


def read_examples(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Read one file.

    Args:
        path: The file.
        data: What its rows are.
        target: What every row must have beside its texts.

    Raises:
        CorpusError: The file, a column or a row does not fit, with its place.
    """
    examples = _READERS[data.form](path, data, target)
    kept = [e for e in examples if e.target is None or e.target not in data.skip_labels]
    if len(kept) < len(examples):
        note(f"{path}: {len(examples) - len(kept):,} rows have a label in data.skip_labels.")
    if not kept:
        raise CorpusError(f"{path}: no row is left to learn from.")
    if target == "label":
        kept = [_known_label(example, data) for example in kept]
    return kept[: data.limit]


def _known_label(example: Example, data: DataConfig) -> Example:
    label = data.rename.get(str(example.target), str(example.target))
    if data.labels and label not in data.labels:
        raise CorpusError(
            f"{example.source}: {unknown_name(label, label, data.labels, 'label')} Set data.labels "
            f"to the classes of your data, or data.rename.{label} to one of these."
        )
    return Example(example.texts, label, example.source, example.group)


def _pairs(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    names = data.columns
    low, high = data.score_range
    _require_column(path, data, target)
    pairs = read_pairs(
        path,
        text1=names.text1,
        text2=names.text2,
        score=names.score,
        label=names.label,
        score_range=data.score_range if target == "score" else None,
        need=[] if target == "nothing" else [target],
    )
    targets: Sequence[str | float | None] = [None] * len(pairs)
    if target == "label":
        targets = [pair.label for pair in pairs]
    elif target == "score":
        targets = [((pair.score or 0.0) - low) / (high - low) for pair in pairs]
        _doubt(path, [pair.score or 0.0 for pair in pairs], data.score_range)
    return [
        Example((pair.text1, pair.text2), target, pair.source)
        for pair, target in zip(pairs, targets, strict=True)
    ]


def _require_column(path: Path, data: DataConfig, target: TargetKind) -> None:
    """Refuse a file without the column that the loss compares with."""
    there = field_names(classify(path))
    if target == "nothing" or there is None or getattr(data.columns, target) is not None:
        return
    if not set(COLUMNS[target]) & set(there):
        raise CorpusError(
            f"{path}: the loss needs a {target}, and there is no such column among "
            f"{', '.join(there)}. Name it by data.columns.{target}, or take a loss.name that needs "
            "none."
        )


def _doubt(path: Path, scores: Sequence[float], score_range: tuple[float, float]) -> None:
    low, high = score_range
    if max(scores) <= low + 0.25 * (high - low):
        note(
            f"{path}: no score is above {max(scores):g}, in a range of {low:g} to {high:g}. If "
            f"that is not meant, set data.score_range=[{low:g}, {max(scores):g}]."
        )


def _nli(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Make an anchor of each premise, with what it entails and, in turn, what contradicts it."""
    hypotheses: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for example in _pairs(path, data, "label"):
        label = data.rename.get(str(example.target), str(example.target))
        premise, hypothesis = example.texts
        hypotheses[premise][label].append((hypothesis, example.source))
    examples = []
    for premise, by_label in hypotheses.items():
        others = [text for text, _ in by_label[CONTRADICTION]]
        for number, (positive, source) in enumerate(by_label[ENTAILMENT]):
            negative = others[number % len(others) : number % len(others) + 1] if others else []
            examples.append(Example((premise, positive, *negative), None, source))
    if not examples:
        raise CorpusError(
            f"{path}: no row has the label {ENTAILMENT!r}. Set data.rename.<label> = "
            f"{ENTAILMENT!r}, or data.form = 'pairs' if all its pairs belong together."
        )
    return examples


def _triplets(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    names = data.columns
    triplets = read_triplets(
        path, anchor=names.text1, positive=names.text2, negative=names.negative
    )
    return [Example((t.anchor, t.positive, *t.negatives), None, t.source) for t in triplets]


def _sections(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Make triplets of the sections of documents; a file that has triplets is read as it is."""
    if negative_columns(field_names(classify(path)) or []):
        return _triplets(path, data, target)
    examples: list[Example] = []
    for number, document in enumerate(_documents(path)):
        found = section_triplets(document.text, number, data.per_document)
        examples += [Example(three, None, document.source) for three in found]
        if data.limit is not None and len(examples) >= data.limit:
            break
    if not examples:
        raise CorpusError(
            f"{path}: no document has two sections with headings. Headings are lines such as "
            "'# History', '== History ==' or 'History.'; data.form = 'triplets' reads triplets."
        )
    return examples


def _beir(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Pair the queries of a BEIR folder with each document that is judged relevant."""
    queries = {query.query_id: query.text for query in read_queries(path)}
    qrels = read_qrels(path, data.split)
    relevant = {doc_id for grades in qrels.values() for doc_id in grades if grades[doc_id] > 0}
    texts = {d.doc_id: (d.full_text, d.source) for d in _documents(path) if d.doc_id in relevant}
    examples = [
        Example((queries[query_id], texts[doc_id][0]), None, texts[doc_id][1], query_id)
        for query_id, grades in qrels.items()
        for doc_id, grade in grades.items()
        if grade > 0 and query_id in queries and doc_id in texts
    ]
    if not examples:
        raise CorpusError(f"{path}: no query of the split {data.split!r} has a relevant document.")
    return examples


def _groups(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Pair each text of a group with the next one, the last with the first."""
    examples = []
    for group in read_groups(path, texts=data.columns.texts):
        ring = (*group.texts, group.texts[0]) if len(group.texts) > 2 else group.texts
        examples += [Example(two, None, group.source, group.source) for two in pairwise(ring)]
    return examples


def _texts(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Take every distinct text twice; of a file of pairs, the texts of both sides."""
    try:
        pairs = read_pairs(path, text1=data.columns.text1, text2=data.columns.text2)
    except CorpusError:
        found = {document.full_text: document.source for document in _documents(path)}
    else:
        found = {text: pair.source for pair in pairs for text in (pair.text1, pair.text2)}
    return [Example((text, text), None, source) for text, source in found.items()]


def _classes(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Read single texts with a label."""
    name = data.columns.label or "label"
    examples = []
    for document in _documents(path):
        label = document.metadata.get(name)
        if label is None:
            raise CorpusError(f"{document.source}: no {name!r}; name it by data.columns.label.")
        examples.append(Example((document.full_text,), str(label), document.source))
    return examples


def _documents(path: Path) -> Iterator[Document]:
    return (d for batch in CorpusReader([path]).batches() for d in batch.documents)


_READERS: dict[Form, Callable[[Path, DataConfig, TargetKind], list[Example]]] = {
    "pairs": _pairs,
    "nli": _nli,
    "triplets": _triplets,
    "sections": _sections,
    "groups": _groups,
    "texts": _texts,
    "classes": _classes,
    "beir": _beir,
}
