"""Training data of a cross-encoder: rows of one text and the texts that it is paired with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import torch
from torch import Tensor

from sbert_search.base.progress import warn
from sbert_search.base.seed import generator
from sbert_search.declared import Bounds
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.logit_losses import ordered_pairs
from sbert_search.models.sequence_classifier import CrossEncoder
from sbert_search.text.fields import find_field
from sbert_search.text.labelled.candidates import Candidates, judged_candidates, labelled_candidates
from sbert_search.text.labelled.pairs import COLUMNS, MissingColumnError
from sbert_search.text.labelled.retrieval import fold_case_and_space
from sbert_search.text.sources import classify, field_names
from sbert_search.train.data.examples import DataConfig, Example, read_examples
from sbert_search.train.data.text_dataset import RowTokens, TextBatches, TextRows
from sbert_search.train.loop.objective import Batch, BatchingConfig, Rows

PairTask = Literal["classes", "scores", "relevance"]


@dataclass(frozen=True, kw_only=True)
class PairDataConfig(DataConfig):
    """The data files of a cross-encoder, and how their rows are read.

    For the task ``relevance``, the texts that a query is paired with come from one of:

    - A BEIR folder and a TREC run, a file of search results: the documents that the run retrieved
      for each judged query, and the relevant documents.
    - A file of pairs (query, text) with grades 0, 1, 2, ... as labels: all texts of a query.
    - A file of triplets with ``form="triplets"``: the positive and the negatives of a row.
    - With ``mining.negatives``, a file of pairs (query, relevant text), or a BEIR folder with
      ``form="beir"``: the relevant text, and negatives that are mined.
    """

    runs: tuple[Path, ...] = ()  # a TREC run for each BEIR folder of data.train
    dev_run: Path | None = None  # TREC run of data.dev, if that is a BEIR folder
    depth: Annotated[int, Bounds(1)] = 50  # candidates of a query, from the top of the run
    negatives: Annotated[int, Bounds(1)] = 7  # maximum number of irrelevant texts of a row

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.runs and self.form == "beir":
            raise ConfigError(
                f"data.runs has {len(self.runs)} files, but data.form is 'beir', with which no run "
                "is read: negatives are mined. Remove data.runs; or remove data.form, so that the "
                "candidates of each BEIR folder come from its run."
            )
        folders = [path for path in self.files if self.by_run(path)]
        if len(self.runs) != len(folders):
            raise ConfigError(
                f"data.train has {len(folders)} folders, but data.runs has {len(self.runs)} files. "
                "Name one run for each folder; `search --queries --run-out` writes one."
            )

    def by_run(self, path: Path) -> bool:
        """Whether the candidates of the queries of a path come from a TREC run."""
        return path.is_dir() and self.form != "beir"

    @property
    def judgements(self) -> list[Path]:
        """Files with the relevance judgements of all BEIR folders."""
        return [path / "qrels" / f"{self.split}.tsv" for path in self.files if path.is_dir()]


def read_rows(
    data: PairDataConfig, task: PairTask, seed: int, *, positives: bool = False
) -> list[list[Example]]:
    """Read the training rows of every file.

    With ``positives``, all pairs of files without a run count as relevant, and the caller mines
    their negatives. ``seed`` is of the order in which irrelevant texts are distributed over rows.
    """
    if task != "relevance":
        return [
            read_examples(path, data, "label" if task == "classes" else "score")
            for path in data.files
        ]
    runs = iter(data.runs)
    parts = []
    for path in data.files:
        if data.by_run(path):
            candidates = judged_candidates(
                path, next(runs), split=data.split, depth=data.depth, with_relevant=True
            )
        elif positives or data.form == "triplets":
            if positives:
                _refuse_grades(path, data)
            parts.append(read_examples(path, data, "nothing"))
            continue
        else:
            candidates = _labelled_rows(path, data)
        rows = list(relevance_rows(candidates, data.negatives, seed))
        parts.append(_checked(path, candidates, rows)[: data.limit])
    return parts


def _refuse_grades(path: Path, data: DataConfig) -> None:
    """Refuse a file with grades where all pairs would be read as relevant."""
    names = [] if data.form != "pairs" else field_names(classify(path)) or []
    label = data.columns.label
    graded = find_field(COLUMNS["label"], names) if label is None else label
    if graded in names:
        raise CorpusError(
            f"{path}: it has grades, in the column {graded!r}, but with mining.negatives every "
            "pair counts as relevant. Set mining.negatives=0 to learn from the grades, or give a "
            "file of the relevant pairs without that column."
        )


def _labelled_rows(path: Path, data: DataConfig) -> list[Candidates]:
    """Read a file of pairs with grades; the error for a file without grades says what to do."""
    try:
        return labelled_file(path, data)
    except MissingColumnError as error:
        if error.part != "label":
            raise
        raise CorpusError(
            f"{error} If all pairs are relevant, let negatives be mined: --set mining.negatives=7."
        ) from error


def labelled_file(path: Path, data: DataConfig) -> list[Candidates]:
    """Read the queries of a file of pairs with grades, from the columns that ``data`` names."""
    names = data.columns
    return labelled_candidates(path, text1=names.text1, text2=names.text2, label=names.label)


def relevance_rows(
    candidates: Sequence[Candidates], negatives: int, seed: int
) -> Iterator[Example]:
    """Yield rows of a query, a relevant text and up to ``negatives`` irrelevant ones; all are used.

    If a query has more relevant texts than groups of irrelevant ones, groups are used again; if
    fewer, relevant texts are. A query that lacks either gives no row. A text that equals the query
    or a relevant text, apart from case and white space, is not used as an irrelevant one.
    """
    for number, each in enumerate(candidates):
        texts = {doc_id: text for doc_id, text in each.texts.items() if text.strip()}
        good = [text for doc_id, text in texts.items() if each.grades.get(doc_id, 0) > 0]
        # A query is relevant to itself.
        known = {*map(fold_case_and_space, (each.query, *good))}
        bad = [
            text
            for doc_id, text in texts.items()
            if each.grades.get(doc_id, 0) < 1 and fold_case_and_space(text) not in known
        ]
        if not good or not bad:
            continue
        order = generator(seed, "sample", number).permutation(len(bad)).tolist()
        slices = [order[start : start + negatives] for start in range(0, len(bad), negatives)]
        for row in range(max(len(good), len(slices))):
            others = (bad[index] for index in slices[row % len(slices)])
            texts_of_row = (each.query, good[row % len(good)], *others)
            yield Example(texts_of_row, None, f"query {each.query_id}")


def _checked(path: Path, candidates: Sequence[Candidates], rows: list[Example]) -> list[Example]:
    used = {row.source for row in rows}
    if not rows:
        raise CorpusError(f"{path}: no query has both a relevant and an irrelevant text.")
    if len(used) < len(candidates):
        warn(
            f"{path}: {len(candidates) - len(used):,} of {len(candidates):,} queries are not used: "
            "they lack a relevant text or an irrelevant one."
        )
    return rows


@dataclass(frozen=True, eq=False, slots=True)
class PairTexts:
    """All pairs of a micro-batch, concatenated without padding, in the order of the rows."""

    tokens: PackedTokens
    sizes: tuple[int, ...]  # number of pairs of each row
    targets: Tensor  # (pairs,): classes, int64, or scores or grades, float32

    def to(self, device: torch.device) -> PairTexts:
        """Copy the tensors to a device."""
        return PairTexts(self.tokens.to(device), self.sizes, self.targets.to(device))


class PairBatches(TextBatches):
    """Batches of rows; the first text of a row is paired with each other text of the row.

    ``loss`` decides whether the loss is a sum over pairs of texts, over rows, or over pairs of
    candidates with different grades.
    """

    def __init__(
        self,
        rows: TextRows,
        tokens: RowTokens,
        model: CrossEncoder,
        config: BatchingConfig,
        *,
        seed: int,
        loss: str,
        weights: Sequence[float] = (),
    ) -> None:
        self.model, tokenizer = model, model.tokenizer
        super().__init__(rows, tokens, config, seed=seed, summed=loss, weights=weights)
        # The length of a text counts its special tokens; a pair has another number of them.
        extra = tokenizer.pair.size - 2 * tokenizer.single.size
        ids = (rows.text_ids[row][: rows.sizes[row]] for row in range(len(rows.text_ids)))
        lengths = (tokens.table.lengths[texts] for texts in ids)
        self.lengths[:] = [
            (own[0] + own[1:] + extra).clip(max=tokenizer.max_len).sum() for own in lengths
        ]

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        texts = [self.text_rows.row_texts(row) for row in rows.tolist()]
        pairs = [(first, other) for first, *others in texts for other in others]
        sizes = tuple(len(each) - 1 for each in texts)
        tokens = self.model.pack(self.model.tokenizer.encode_pairs(pairs))
        targets = self._targets(rows, sizes)
        counts = {"list_net": len(rows), "list_softmax": len(rows)}
        if self.summed == "pairwise":
            counts["pairwise"] = int(ordered_pairs(targets, sizes).sum())
        loss = self.summed or ""
        inputs = PairTexts(tokens, sizes, targets)
        return Batch(inputs, rows, {loss: counts.get(loss, len(pairs))})

    def _targets(self, rows: Rows, sizes: Sequence[int]) -> Tensor:
        if self.text_rows.targets is not None:
            return torch.from_numpy(self.text_rows.targets[rows])
        return torch.tensor(list(chain.from_iterable((1.0, *[0.0] * (n - 1)) for n in sizes)))
