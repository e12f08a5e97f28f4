"""What a cross-encoder learns from: a text with others, read together pair by pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sbert_search.corpus.candidates import Candidates, judged_candidates, labelled_candidates
from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.losses.relevance import ordered_pairs
from sbert_search.models.cross_encoder import CrossEncoder
from sbert_search.runtime.progress import note
from sbert_search.runtime.seed import generator
from sbert_search.training.data.examples import DataConfig, Example, read_examples
from sbert_search.training.data.text_dataset import TextBatches, TextRows, TokenTable
from sbert_search.training.loop.batching import BatchingConfig, Rows
from sbert_search.training.loop.objective import Batch

PairTask = Literal["classes", "scores", "relevance"]


@dataclass(frozen=True, kw_only=True)
class PairDataConfig(DataConfig):
    """Which files, and what their rows are.

    For the task relevance a BEIR folder gives the candidates that a run found for its judged
    queries, and a file of pairs with labels from 0 those that share the first text; with the form
    ``beir`` a folder gives its relevant pairs alone, for which negatives are mined.
    """

    runs: tuple[Path, ...] = ()  # TREC run of each BEIR folder of data.train, in order
    dev_run: Path | None = None  # where data.dev is a BEIR folder
    dev_split: str = "dev"
    depth: int = 50  # candidates of a query, from the top of the run
    negatives: int = 7  # of a row, beside its one relevant text

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "negatives"):
            if getattr(self, name) < 1:
                raise ConfigError(f"data.{name} is {getattr(self, name)}; it must be at least 1.")
        folders = [path for path in self.files if self.by_run(path)]
        if len(self.runs) != len(folders):
            raise ConfigError(
                f"data.train has {len(folders)} folders and data.runs {len(self.runs)} files; name "
                "the run of each folder, such as one that `search --queries --run-out` wrote."
            )

    def by_run(self, path: Path) -> bool:
        """Tell whether a path gives what a run found."""
        return path.is_dir() and self.form != "beir"

    @property
    def judgements(self) -> list[Path]:
        """The file of judgements of each BEIR folder."""
        return [path / "qrels" / f"{self.split}.tsv" for path in self.files if path.is_dir()]


def read_rows(
    data: PairDataConfig, task: PairTask, seed: int, *, positives: bool = False
) -> list[list[Example]]:
    """Read the training rows of every file.

    Args:
        data: Which files.
        task: What is learned from them.
        seed: Of the order in which irrelevant texts share out.
        positives: Whether what no run found are texts that belong together, for which negatives
            are mined.

    Raises:
        CorpusError: A file does not fit, or no query has both a relevant text and another.
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
            found = judged_candidates(
                path, next(runs), split=data.split, depth=data.depth, with_relevant=True
            )
        elif positives or data.form == "triplets":
            parts.append(read_examples(path, data, "nothing"))
            continue
        else:
            found = labelled_file(path, data)
        parts.append(_told(path, found, list(relevance_rows(found, data.negatives, seed))))
    return parts


def labelled_file(path: Path, data: DataConfig) -> list[Candidates]:
    """Read a file of pairs with grades, by the columns that the settings name."""
    names = data.columns
    return labelled_candidates(path, text1=names.text1, text2=names.text2, label=names.label)


def relevance_rows(
    candidates: Sequence[Candidates], negatives: int, seed: int
) -> Iterator[Example]:
    """Put each relevant text in front of texts that are not, in rows that use all of them.

    Args:
        candidates: A query without both kinds of text gives no row.
        negatives: Irrelevant texts of a row; fewer where a query has fewer.
        seed: Of their order.

    Yields:
        Query, relevant text, irrelevant ones. A query with more relevant texts than rows takes its
        irrelevant ones again.
    """
    for number, each in enumerate(candidates):
        texts = {doc_id: text for doc_id, text in each.texts.items() if text.strip()}
        good = [text for doc_id, text in texts.items() if each.grades.get(doc_id, 0) > 0]
        bad = [text for doc_id, text in texts.items() if each.grades.get(doc_id, 0) < 1]
        if not good or not bad:
            continue
        order = generator(seed, "sample", number).permutation(len(bad)).tolist()
        slices = [order[start : start + negatives] for start in range(0, len(bad), negatives)]
        for row in range(max(len(good), len(slices))):
            others = (bad[place] for place in slices[row % len(slices)])
            texts_of_row = (each.query, good[row % len(good)], *others)
            yield Example(texts_of_row, None, f"query {each.query_id}")


def _told(path: Path, found: Sequence[Candidates], rows: list[Example]) -> list[Example]:
    taught = {row.source for row in rows}
    if not rows:
        raise CorpusError(f"{path}: no query has both a relevant text and another.")
    if len(taught) < len(found):
        note(
            f"{path}: {len(found) - len(taught):,} of {len(found):,} queries lack a relevant "
            "text or another, and teach nothing."
        )
    return rows


@dataclass(frozen=True, eq=False, slots=True)
class PairTexts:
    """All pairs of a micro-batch as one packed batch.

    Attributes:
        tokens: The pairs, those of a row one behind another.
        sizes: Pairs of each row.
        targets: A class of each pair, int64, or a score or grade, float32, (pairs,).
    """

    tokens: PackedTokens
    sizes: tuple[int, ...]
    targets: Tensor

    def to(self, device: torch.device) -> PairTexts:
        """Copy the tensors to a device."""
        return PairTexts(self.tokens.to(device), self.sizes, self.targets.to(device))


class PairBatches(TextBatches):
    """Batches of rows whose first text is read together with each of the others."""

    def __init__(
        self,
        rows: TextRows,
        model: CrossEncoder,
        config: BatchingConfig,
        *,
        seed: int,
        loss: str,
        weights: Sequence[float] = (),
    ) -> None:
        """Take the data.

        Args:
            rows: What each row holds.
            model: Whose tokenizer makes the pairs.
            config: How to group the rows.
            seed: Of the order.
            loss: Name of the loss, a sum over pairs, over rows or over ordered candidates.
            weights: Of each file, how often an epoch has its rows.
        """
        self.model, tokenizer = model, model.tokenizer
        table = TokenTable.of(rows.texts, tokenizer)
        super().__init__(rows, table, config, seed=seed, summed=loss, weights=weights)
        frame = tokenizer.pair.size - 2 * tokenizer.single.size
        numbers = (rows.text_ids[row][: rows.sizes[row]] for row in range(len(rows.text_ids)))
        lengths = (table.lengths[texts] for texts in numbers)
        self.lengths[:] = [
            (own[0] + own[1:] + frame).clip(max=tokenizer.max_len).sum() for own in lengths
        ]

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        texts = [self.text_rows.row_texts(row) for row in rows.tolist()]
        pairs = [(first, other) for first, *others in texts for other in others]
        sizes = tuple(len(each) - 1 for each in texts)
        tokens = self.model.pack(self.model.tokenizer.encode_pairs(pairs))
        targets = self._targets(rows, sizes)
        terms = {"list_net": len(rows), "list_softmax": len(rows)}
        if self.summed == "pairwise":
            terms["pairwise"] = int(ordered_pairs(targets, sizes).sum())
        loss = self.summed or ""
        inputs = PairTexts(tokens, sizes, targets)
        return Batch(inputs, rows, {loss: terms.get(loss, len(pairs))})

    def _targets(self, rows: Rows, sizes: Sequence[int]) -> Tensor:
        if self.text_rows.targets is not None:
            return torch.from_numpy(self.text_rows.targets[rows])
        return torch.tensor(list(chain.from_iterable((1.0, *[0.0] * (n - 1)) for n in sizes)))
