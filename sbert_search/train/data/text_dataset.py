"""Training rows as arrays of text ids, and the batches of a sentence encoder.

A row is one training example of one or several texts, the anchor first. Equal texts have one id and
are tokenised once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import warn
from sbert_search.base.seed import generator
from sbert_search.errors import TrainingError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.data.examples import Example
from sbert_search.train.data.grouping import TOGETHER, TextKeys, class_steps, without_duplicates
from sbert_search.train.data.token_table import TokenTable
from sbert_search.train.loop.objective import Batch, Batches, BatchingConfig, Rows, plan_epoch

NO_TEXT = -1  # fills the text ids of rows with fewer texts than the longest


@dataclass(frozen=True, eq=False, slots=True)
class StepTexts:
    """All texts of a micro-batch, sorted by length and concatenated without padding.

    See "A step is one packed batch sorted by length" in docs/decisions.md.
    """

    tokens: PackedTokens
    slots: Tensor  # index of each text in a flattened table (rows, width), int64 (texts,)
    width: int  # maximum number of texts in a row

    def to(self, device: torch.device) -> StepTexts:
        """Copy the tensors to a device."""
        return StepTexts(self.tokens.to(device), self.slots.to(device), self.width)

    def by_row(self, embeddings: Tensor, n_rows: int) -> Tensor:
        """Arrange embeddings (texts, dim) by row, (n_rows, width, dim); missing texts give 0."""
        filled = embeddings.new_zeros(n_rows * self.width, embeddings.shape[-1])
        return filled.index_copy(0, self.slots, embeddings).view(n_rows, self.width, -1)


@dataclass(frozen=True, slots=True)
class TextRows:
    """The rows of all training files."""

    texts: list[str]  # every distinct text once
    text_ids: NDArray[np.int32]  # (n, width), padded with NO_TEXT
    groups: NDArray[np.int64]  # number of the `Example.group`, (n,); -1: none
    file_ids: NDArray[np.int16]  # (n,)
    targets: NDArray[np.generic] | None  # (n, ...)
    sources: list[str]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of texts of each row, (n,)."""
        sizes: NDArray[np.int64] = np.sum(self.text_ids != NO_TEXT, axis=1, dtype=np.int64)
        return sizes

    def select(self, kept: NDArray[np.bool_]) -> TextRows:
        """Return the rows for which ``kept``, (n,), is true."""
        return replace(
            self,
            text_ids=self.text_ids[kept],
            groups=self.groups[kept],
            file_ids=self.file_ids[kept],
            targets=None if self.targets is None else self.targets[kept],
            sources=[self.sources[row] for row in np.flatnonzero(kept).tolist()],
        )

    def row_texts(self, row: int) -> tuple[str, ...]:
        """Return the texts of a row."""
        return tuple(self.texts[text] for text in self.text_ids[row] if text != NO_TEXT)

    def fingerprint(self, prompts: Sequence[str] = ()) -> str:
        """Hash the texts, all arrays, and the prompts of `RowTokens`."""
        digest = xxhash.xxh3_128("\0".join([*self.texts, *prompts]).encode())
        for array in (self.text_ids, self.groups, self.file_ids, self.targets):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def arrange(files: Sequence[Sequence[Example]], classes: Sequence[str]) -> TextRows:
    """Give each distinct text an id, and put all examples into arrays; ``classes`` name labels."""
    examples = [example for file in files for example in file]
    number: dict[str, int] = {}
    width = max(len(example.texts) for example in examples)
    text_ids = np.full((len(examples), width), NO_TEXT, dtype=np.int32)
    for row, example in enumerate(examples):
        for slot, text in enumerate(example.texts):
            text_ids[row, slot] = number.setdefault(text, len(number))
    group: dict[str, int] = {"": -1}
    groups = [group.setdefault(example.group, len(group)) for example in examples]
    return TextRows(
        list(number),
        text_ids,
        np.array(groups, dtype=np.int64),
        np.repeat(np.arange(len(files), dtype=np.int16), [len(file) for file in files]),
        _targets(examples, classes),
        [example.source for example in examples],
    )


def _targets(examples: Sequence[Example], classes: Sequence[str]) -> NDArray[np.generic] | None:
    if classes:
        number = {label: n for n, label in enumerate(classes)}
        return np.array([number[str(example.target)] for example in examples], dtype=np.int64)
    if examples[0].target is None:
        return None
    return np.array([example.target for example in examples], dtype=np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class RowTokens:
    """Tokens of the texts of rows, each text with its prompt."""

    table: TokenTable
    ids: NDArray[np.int32]  # index of each text of a row in the table, (n, width), or NO_TEXT
    # Before the first text of a row, the second, ...; the last one also before all further texts.
    prompts: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        rows: TextRows,
        tokenizer: TextTokenizer,
        prompts: Sequence[str] = (),
        ranks: Ranks | None = None,
    ) -> RowTokens:
        """Tokenise the texts of rows, divided among the ranks; () and empty prompts are equal."""
        for before in prompts:
            tokenizer.require_room(before)
        if not any(prompts):
            return cls(TokenTable.of(rows.texts, tokenizer, ranks), rows.text_ids)
        prompt = np.minimum(np.arange(rows.text_ids.shape[1]), len(prompts) - 1)
        pairs = np.where(
            rows.text_ids == NO_TEXT, NO_TEXT, rows.text_ids * np.int64(len(prompts)) + prompt
        )
        distinct = np.unique(pairs[pairs != NO_TEXT])
        ids = np.where(pairs == NO_TEXT, NO_TEXT, np.searchsorted(distinct, pairs))
        numbers = (divmod(pair, len(prompts)) for pair in distinct.tolist())
        texts = [prompts[which] + rows.texts[text] for text, which in numbers]
        table = TokenTable.of(texts, tokenizer, ranks)
        return cls(table, ids.astype(np.int32), tuple(prompts))


class TextBatches(Batches):
    """Batches of rows of texts, with files mixed by weight.

    ``summed`` names a loss that is a sum over rows; None: it is of the whole batch. With
    ``no_duplicates``, rows that share a text (the same tokens) or a group are kept in separate
    batches, as are rows with a text that is a positive of the other row's anchor. With
    ``by_class``, the targets are classes, and each batch has two texts of a class, and two classes.
    ``weights`` say for each file how often its rows occur in an epoch; (): once.
    """

    def __init__(
        self,
        rows: TextRows,
        tokens: RowTokens,
        config: BatchingConfig,
        *,
        seed: int,
        summed: str | None,
        no_duplicates: bool = False,
        by_class: bool = False,
        weights: Sequence[float] = (),
    ) -> None:
        self.text_rows, self.tokens = rows, tokens
        self.summed, self.weights = summed, tuple(weights)
        self.by_class = by_class
        self._keys: TextKeys | None = None
        # NO_TEXT, -1, takes the last value, so missing texts have length 0.
        lengths = np.append(tokens.table.lengths, 0)[tokens.ids].sum(axis=1)
        super().__init__(
            lengths, self._batch, config, seed=seed, fingerprint=rows.fingerprint(tokens.prompts)
        )
        if no_duplicates:
            ids = equal_texts(rows, tokens)
            self._keys = TextKeys(ids, rows.groups)
            _tell_duplicates(ids, rows.sources)
            self._check_first_epoch()

    def plan(self, epoch: int) -> list[Rows]:
        """Draw the rows of an epoch by weight and group them into steps."""
        return self._plan(epoch, self.config)

    def _plan(self, epoch: int, config: BatchingConfig) -> list[Rows]:
        order = generator(self.seed, "order", epoch)
        drawn = self._draw(order)
        if self.by_class:
            assert self.text_rows.targets is not None
            classes = self.text_rows.targets.astype(np.int64)
            return class_steps(drawn, classes, self.lengths, config, order)
        steps = [drawn[step] for step in plan_epoch(self.lengths[drawn], config, order)]
        if self._keys is None:
            return steps
        if self.text_rows.text_ids.shape[1] < 3:
            steps = _without_single_rows(steps)
        return without_duplicates(steps, self._keys.own, self._keys.excluded)

    def _check_first_epoch(self) -> None:
        """Refuse steps without a negative; warn the user if rows are left out."""
        steps = self._steps(0)
        if max(map(len, steps)) == 1 and self.text_rows.text_ids.shape[1] < 3:
            planned = plan_epoch(self.lengths, self.config, generator(self.seed, "order", 0))
            cause = f"batching.size is {self.config.size} (in {self.config.unit})"
            remedy = "Use a larger batching.size"
            if len(self.lengths) == 1:
                cause, remedy = "there is one row", "Give more rows"
            elif max(map(len, planned)) > 1:
                cause, remedy = "the rows share their texts or groups", "Give pairs of other texts"
            raise TrainingError(
                f"Every step would have one row, since {cause}. The negatives of a row are the "
                "texts of the other rows in its step, so without negatives of its own it would "
                f"have none, and its loss would be 0. {remedy}, or add negatives to the rows."
            )
        n_drawn = len(self._draw(generator(self.seed, "order", 0)))
        left, fewer = n_drawn - sum(map(len, steps)), 0
        if not left:
            return
        if self.config.size > 1:
            halved = self._plan(0, replace(self.config, size=self.config.size // 2))
            fewer = n_drawn - sum(len(step) for step in halved if len(step) > 1)
        advice = " A smaller batching.size leaves out fewer." if fewer < left else ""
        warn(
            f"{left:,} of {n_drawn:,} rows are left out of the first epoch: they share texts or "
            "groups with other rows, which this loss would treat as negatives, and do not fill a "
            f"step.{advice}"
        )

    def _draw(self, order: np.random.Generator) -> Rows:
        all_rows = np.arange(len(self.lengths))
        if not self.weights:
            return all_rows
        drawn = []
        for file_id, weight in enumerate(self.weights):
            of_file = all_rows[self.text_rows.file_ids == file_id]
            # With a weight below 1, at least one row of the file is drawn, even of a small file.
            few = max(round(weight % 1 * len(of_file)), weight < 1)
            fraction = order.permutation(of_file)[:few]
            drawn += [of_file] * int(weight) + [fraction]
        return np.concatenate(drawn)

    def _batch(self, rows: Rows, epoch: int) -> Batch:
        table, ids = self.tokens.table, self.tokens.ids[rows].ravel()
        slots = np.flatnonzero(ids != NO_TEXT)
        width = self.tokens.ids.shape[1]
        slots = slots[np.argsort(table.lengths[ids[slots]], kind="stable")]
        texts = StepTexts(table.pack(ids[slots]), torch.from_numpy(slots), width)
        targets = self.text_rows.targets
        # MNRL, which has no targets, reads the number of texts of each row in their place.
        return Batch(
            texts,
            rows,
            {} if self.summed is None else {self.summed: len(rows)},
            torch.from_numpy(self.text_rows.sizes[rows] if targets is None else targets[rows]),
        )


def check_targets(
    rows: TextRows, classes: Sequence[str], loss: str, *, by_class: bool = False
) -> None:
    """Refuse targets that teach nothing: all are equal, or with ``by_class`` no class has two."""
    if rows.targets is None:
        return
    counts = np.unique(rows.targets, return_counts=True)[1]
    if by_class and counts.max() < TOGETHER:
        raise TrainingError(
            f"Each of the {len(counts):,} classes has one text, such as that of "
            f"{classes[int(rows.targets[0])]!r} at {rows.sources[0]}; the loss {loss} compares "
            "two texts of a class. Give classes of several texts, or use another loss.name."
        )
    if len(counts) > 1:
        return
    only = rows.targets.flat[0]
    kind = "label" if classes else "score"
    shown = repr(classes[int(only)]) if classes else f"{float(only):g}"
    raise TrainingError(
        f"All {len(rows.sources):,} rows from {rows.sources[0]} to {rows.sources[-1]} have the "
        f"{kind} {shown}; the loss {loss} needs at least two different {kind}s. Add rows with "
        f"another {kind}; for a bi-encoder, loss.name=mnrl needs no {kind}."
    )


def _without_single_rows(steps: list[Rows]) -> list[Rows]:
    """Join steps of one row, which has no negative, to a neighbour, unless all have one row."""
    if max(map(len, steps)) == 1:
        return steps
    joined: list[Rows] = []
    for step in steps:
        if joined and len(joined[-1]) == 1:
            joined[-1] = np.concatenate([joined[-1], step])
        else:
            joined.append(step)
    if len(joined) > 1 and len(joined[-1]) == 1:
        joined[-2:] = [np.concatenate(joined[-2:])]
    return joined


def equal_texts(rows: TextRows, tokens: RowTokens) -> NDArray[np.int64]:
    """Number the texts of each row, (n, width): texts with the same tokens have one number."""
    # The table may hold a text several times, once for each prompt, and texts that no row has.
    text_of = np.full(len(tokens.table.lengths), NO_TEXT, dtype=np.int64)
    present = rows.text_ids != NO_TEXT
    text_of[tokens.ids[present]] = rows.text_ids[present]
    first: dict[bytes, int] = {}
    number = list(range(len(rows.texts)))  # of each text: itself, or an earlier equal text
    for text, key in zip(text_of.tolist(), tokens.table.keys(), strict=True):
        if text == NO_TEXT:
            continue
        one, other = _root(number, first.setdefault(key, text)), _root(number, text)
        number[max(one, other)] = min(one, other)
    roots = np.array([_root(number, text) for text in number], dtype=np.int64)
    return np.where(present, roots[rows.text_ids], NO_TEXT)


def _root(number: Sequence[int], text: int) -> int:
    while number[text] != text:
        text = number[text]
    return text


def _tell_duplicates(ids: NDArray[np.int64], sources: Sequence[str]) -> None:
    keys = list(map(tuple, ids.tolist()))
    counts = Counter(keys)
    if copies := len(keys) - len(counts):
        row = next(n for n, key in enumerate(keys) if counts[key] > 1)
        warn(
            f"{copies:,} of {len(keys):,} rows repeat the texts of another row, such as "
            f"the one at {sources[row]}. This loss would treat equal texts as each other's "
            "negatives, so they never share a batch. Remove the copies to train on each text once."
        )
