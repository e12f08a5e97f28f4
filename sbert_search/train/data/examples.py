"""Read the training examples of a sentence encoder: texts with a label, a score or no target."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, get_args

from sbert_search.base.progress import note, warn
from sbert_search.base.seed import generator
from sbert_search.config import unknown_name
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.records import Document
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.text.fields import find_field
from sbert_search.text.labelled.pairs import (
    COLUMNS,
    MissingColumnError,
    negative_columns,
    read_groups,
    read_pairs,
    read_triplets,
)
from sbert_search.text.labelled.retrieval import read_qrels, read_queries
from sbert_search.text.sources import classify, field_names
from sbert_search.text.tokens.chunking import split_sections

_MIN_WORDS = 5  # per sentence


def section_triplets(text: str, number: int, count: int) -> Iterator[tuple[str, str, str]]:
    """Draw triplets: two sentences of one section (anchor, positive) and one of another section.

    The text before the first heading, about the whole document, and sentences of fewer than five
    words are not used. A document without two usable sections, or without one of two sentences,
    gives nothing.

    Source: Ein Dor et al. 2018, Learning Thematic Similarity Metric from Article Sections Using
    Triplet Networks, section 3.
    """
    long = [
        [sentence for sentence in section.sentences if len(sentence.split()) >= _MIN_WORDS]
        for section in split_sections(text)
        if section.heading
    ]
    sections = [sentences for sentences in long if sentences]
    with_pair = [index for index, sentences in enumerate(sections) if len(sentences) > 1]
    if not with_pair or len(sections) < 2:
        return
    draw = generator(0, "sample", number)
    for _ in range(count):
        own = int(draw.choice(with_pair))
        other = int(draw.choice([index for index in range(len(sections)) if index != own]))
        anchor, positive = draw.choice(sections[own], 2, replace=False).tolist()
        yield anchor, positive, str(draw.choice(sections[other]))


Form = Literal["pairs", "nli", "triplets", "sections", "groups", "texts", "classes", "beir"]
"""How a file is read as training rows; `_READERS` has a function for each form."""
TargetKind = Literal["nothing", "label", "score"]

FORMS_BY_TARGET: Mapping[TargetKind, tuple[Form, ...]] = {
    "nothing": get_args(Form),
    "label": ("pairs", "classes"),
    "score": ("pairs",),
}
"""Values of ``data.form`` that give each kind of target."""

ENTAILMENT, CONTRADICTION = "entailment", "contradiction"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnNames:
    """Names of columns; None: the usual names, which the modules of `text.labelled` list."""

    text1: str | None = None  # first text of a pair, anchor of a triplet
    text2: str | None = None  # second text of a pair, positive of a triplet
    negative: str | None = None  # negative of a triplet
    texts: str | None = None  # a list of texts with the same meaning
    score: str | None = None  # score of a pair
    label: str | None = None  # label of a pair or of a single text


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The data files, and how their rows are read."""

    train: Path | tuple[Path, ...]  # file or files to train on
    dev: Path | None = None  # file for the dev metrics
    weights: tuple[float, ...] = ()  # for each file: how often an epoch uses its rows; (): once
    form: Form = "pairs"  # what a row of a file holds
    columns: ColumnNames = field(default_factory=ColumnNames)
    labels: tuple[str, ...] = ()  # classes, in order; (): all labels of the files, sorted
    rename: Mapping[str, str] = field(default_factory=dict)  # maps labels in files to `labels`
    skip_labels: tuple[str, ...] = ("-",)  # rows with these labels in the file are skipped
    score_range: tuple[float, float] = (0.0, 5.0)  # lowest and highest score; scaled to 0..1
    split: str = "train"  # name of the relevance judgements of a BEIR folder
    dev_split: str = "dev"  # name of those of data.dev
    per_document: Annotated[int, Bounds(1)] = 4  # triplets drawn from the sections of one document
    limit: Annotated[int | None, Bounds(1)] = None  # maximum number of rows, from a file's start

    def __post_init__(self) -> None:
        check(self, table="data.")
        if not self.files:
            raise ConfigError("data.train is an empty list; name at least one file.")
        if self.weights and len(self.weights) != len(self.files):
            raise ConfigError(
                f"data.weights has {len(self.weights)} values for {len(self.files)} files; "
                "give one for each file of data.train."
            )
        if any(weight <= 0 for weight in self.weights):
            raise ConfigError(f"data.weights is {self.weights}; every weight must be above 0.")
        if twice := [name for name, count in Counter(self.labels).items() if count > 1]:
            raise ConfigError(f"data.labels has {twice[0]!r} twice; name each class once.")
        if not self.score_range[0] < self.score_range[1]:
            raise ConfigError(
                f"data.score_range is {self.score_range}; the first value must be the smaller one."
            )

    @property
    def files(self) -> tuple[Path, ...]:
        """The training files."""
        return (self.train,) if isinstance(self.train, Path) else self.train


@dataclass(frozen=True, slots=True)
class Example:
    """A training example, or row: texts that a loss compares, anchor first, with their target."""

    texts: tuple[str, ...]
    target: str | float | None  # a label, or a score from 0 to 1
    source: str  # for messages, such as file:line
    group: str = ""  # texts of a group are positives of each other, as those of a query; "": none


def read_examples(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Read the training examples of one file, each with a target of the kind ``target``."""
    examples = _READERS[data.form](path, data, target)
    kept = [e for e in examples if e.target is None or e.target not in data.skip_labels]
    if len(kept) < len(examples):
        note(f"{path}: {len(examples) - len(kept):,} rows are skipped by data.skip_labels.")
    if not kept:
        raise CorpusError(f"{path}: no row is left; all have a label in data.skip_labels.")
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
        positive=target == "nothing",
    )
    targets: Sequence[str | float | None] = [None] * len(pairs)
    if target == "label":
        targets = [pair.label for pair in pairs]
    elif target == "score":
        targets = [((pair.score or 0.0) - low) / (high - low) for pair in pairs]
        _warn_of_range(path, [pair.score or 0.0 for pair in pairs], data.score_range)
    return [
        Example((pair.text1, pair.text2), target, pair.source)
        for pair, target in zip(pairs, targets, strict=True)
    ]


def _require_column(path: Path, data: DataConfig, target: TargetKind) -> None:
    names = field_names(classify(path))
    if target == "nothing" or names is None or getattr(data.columns, target) is not None:
        return
    if find_field(COLUMNS[target], names) is None:
        raise CorpusError(
            f"{path}: the loss needs a {target}, but there is no such column among "
            f"{', '.join(names)}. Name it with data.columns.{target}, or use a loss.name without a "
            f"{target}."
        )


def _warn_of_range(path: Path, scores: Sequence[float], score_range: tuple[float, float]) -> None:
    """Warn if all scores are in the lowest quarter of the range: they probably have another one."""
    low, high = score_range
    if max(scores) <= low + 0.25 * (high - low):
        warn(
            f"{path}: the highest score is {max(scores):g}, but data.score_range is {low:g} to "
            f"{high:g}. If the scores have another range, set data.score_range=[{low:g}, "
            f"{max(scores):g}]."
        )


def _nli(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Make a row of each premise and entailed hypothesis.

    Contradicting hypotheses of the premise are used in turn as its negative, if there are any.
    """
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
            f"{ENTAILMENT!r}, or data.form = 'pairs' if all its pairs are positive."
        )
    return examples


def _triplets(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    names = data.columns
    triplets = read_triplets(
        path, anchor=names.text1, positive=names.text2, negative=names.negative
    )
    return [Example((t.anchor, t.positive, *t.negatives), None, t.source) for t in triplets]


def _sections(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Draw triplets from sections of documents; read a file that has negatives as triplets."""
    if negative_columns(field_names(classify(path)) or []):
        return _triplets(path, data, target)
    examples: list[Example] = []
    for number, document in enumerate(_documents(path, data)):
        triplets = section_triplets(document.text, number, data.per_document)
        examples += [Example(triplet, None, document.source) for triplet in triplets]
        if data.limit is not None and len(examples) >= data.limit:
            break
    if not examples:
        raise CorpusError(
            f"{path}: no document has two sections with headings. Headings are lines such as "
            "'# History', '== History ==' or 'History.'. For a file of triplets, set data.form = "
            "'triplets'."
        )
    return examples


def _beir(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Pair each query of a BEIR folder with each of its relevant documents."""
    queries = {query.query_id: query.text for query in read_queries(path)}
    qrels = read_qrels(path, data.split)
    relevant = {doc_id for grades in qrels.values() for doc_id in grades if grades[doc_id] > 0}
    texts = {
        d.doc_id: (d.full_text, d.source) for d in _documents(path, None) if d.doc_id in relevant
    }
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
    """Pair each text of a group with the next, and the last with the first if there are three."""
    examples = []
    try:
        groups = read_groups(path, texts=data.columns.texts)
    except MissingColumnError as error:
        raise CorpusError(
            f"{error} If a row is a pair of texts, use --set data.form=pairs; the recipe "
            "query-passage learns from pairs of a query and a passage."
        ) from error
    for group in groups:
        ring = (*group.texts, group.texts[0]) if len(group.texts) > 2 else group.texts
        examples += [Example(two, None, group.source, group.source) for two in pairwise(ring)]
    return examples


def _texts(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    """Pair every distinct text of a file with itself.

    Both texts of a pair are used, unless the settings name only one text column and the file has no
    second one with a usual name. If they name none, a file without two text columns is read as
    documents.
    """
    one, two = data.columns.text1, data.columns.text2
    try:
        pairs = read_pairs(path, text1=one, text2=two)
    except MissingColumnError:
        pairs = read_pairs(path, text1=one or two, text2=one or two) if one or two else []
    sources = {text: pair.source for pair in pairs for text in (pair.text1, pair.text2)}
    sources = sources or {doc.full_text: doc.source for doc in _documents(path, data)}
    return [Example((text, text), None, source) for text, source in sources.items()]


def _classes(path: Path, data: DataConfig, target: TargetKind) -> list[Example]:
    name = data.columns.label or "label"
    examples = []
    for document in _documents(path, data):
        label = document.metadata.get(name)
        if label is None:
            raise CorpusError(
                f"{document.source}: no {name!r}; name the column with data.columns.label."
            )
        wanted = str(label) if target == "label" else None
        examples.append(Example((document.full_text,), wanted, document.source))
    return examples


def _documents(path: Path, data: DataConfig | None) -> Iterator[Document]:
    fields = FieldNames(text=None if data is None else data.columns.text1)
    reader = CorpusReader([path], fields=fields)
    return (document for batch in reader.batches() for document in batch.documents)


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
