"""Tasks by which attention heads are judged: masked tokens, or the similarity of pairs.

Each objective splits its data into two halves. The importance of heads is estimated on the first
half. The score after the removal of heads is measured on the second half.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sbert_search.base.arrays import Ints
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.masking import MaskSettings
from sbert_search.text.tokens.mlm_dataset import MaskedCorpus
from sbert_search.text.tokens.pretokenize import write_token_shards
from sbert_search.text.tokens.segments import SegmentSettings

_ROWS = 32  # examples or pairs in one forward pass
_MAX_LEN = 128  # largest number of tokens of an example


class FitBatch(NamedTuple):
    """A batch of examples, on which the importance of heads is estimated.

    Attributes:
        groups: Index of the example of each token, int64 (total,), in the order in which the
            encoder computes the tokens.
        examples: Number of examples.
        losses: Computes the loss of each example, float (examples,).
    """

    groups: Tensor
    examples: int
    losses: Callable[[], Tensor]


class Objective(Protocol):
    """A task of an encoder, by which heads are judged."""

    name: str
    higher_is_better: bool

    @property
    def encoder(self) -> Encoder:
        """The encoder whose heads are judged."""

    def fit_batches(self) -> Iterator[FitBatch]:
        """Yield batches of the first half, on which the importance of heads is estimated."""

    def score(self) -> float:
        """Measure the encoder on the second half."""


class MaskedTokens:
    """The mean loss of a masked language model over masked tokens, in nats.

    Args:
        model: A model in evaluation mode on its device.
        texts: Texts with at least a few hundred words in total.
        seed: Seed of the masks and of the split into halves.

    Raises:
        EvaluationError: The texts are too short.
    """

    name, higher_is_better = "MLM loss", False

    def __init__(self, model: MaskedLanguageModel, texts: Sequence[str], *, seed: int = 0) -> None:
        self._model = model.requires_grad_(False)
        with tempfile.TemporaryDirectory() as scratch:
            reader = CorpusReader([{"text": text} for text in texts])
            shards = write_token_shards(reader, model.tokenizer.backend, Path(scratch) / "tokens")
            length = min(_MAX_LEN, model.tokenizer.max_len)
            settings = SegmentSettings(kind="full-sentences", max_len=length)
            masks = MaskSettings(static=True)
            corpus = MaskedCorpus(shards, model.tokenizer, settings, masks, seed=seed)
            rows = np.random.default_rng(seed).permutation(len(corpus))
            halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            self._fit, self._test = (self._read(corpus, half) for half in halves)
        if not self._fit or not any(len(batch.labels) for batch in self._test):
            raise EvaluationError(
                f"The texts give {len(rows)} examples of up to {length} tokens, too few to judge "
                "heads; give more text."
            )

    @property
    def encoder(self) -> Encoder:
        """The encoder of the model."""
        return self._model.encoder

    def _read(self, corpus: MaskedCorpus, rows: Ints) -> list[MaskedBatch]:
        segments = self.encoder.config.token_type_vocab > 1
        parts = np.array_split(rows, -(-len(rows) // _ROWS)) if len(rows) else []
        device = self.encoder.embeddings.word.weight.device
        batches = (MaskedBatch.of(corpus.read(part), segments=segments) for part in parts)
        return [_by_length(batch.to(device)) for batch in batches]

    def fit_batches(self) -> Iterator[FitBatch]:
        """Yield batches of the first half, on which the importance of heads is estimated."""
        for batch in self._fit:
            examples = len(batch.tokens.lengths)
            yield FitBatch(batch.tokens.text_of_row, examples, partial(self._losses, batch))

    def _losses(self, batch: MaskedBatch) -> Tensor:
        """Compute the mean loss of each example."""
        examples = len(batch.tokens.lengths)
        of_token, example = self._of_tokens(batch), batch.tokens.text_of_row[batch.positions]
        sums = torch.zeros(examples, device=of_token.device).index_add(0, example, of_token)
        counts = torch.bincount(example, minlength=examples)
        return sums / counts.clamp_min(1)

    def _of_tokens(self, batch: MaskedBatch) -> Tensor:
        output = self._model(batch.tokens, batch.positions, output_states=True)
        return F.cross_entropy(output.token_logits, batch.labels, reduction="none")

    @torch.no_grad()
    def score(self) -> float:
        """Mean loss over the masked tokens of the second half."""
        return float(torch.cat([self._of_tokens(batch) for batch in self._test]).mean())


class PairSimilarity:
    """Spearman correlation of cosines with gold scores, over pairs of texts.

    The loss of a pair is the squared difference between its cosine and its gold score. For the
    loss, gold scores are scaled to the range from 0 to 1.

    Args:
        model: A bi-encoder in evaluation mode on its device.
        pairs: Pairs of texts.
        gold: The gold score of each pair.
        seed: Seed of the split into halves.

    Raises:
        EvaluationError: There are fewer than four pairs, or all gold scores are equal.
    """

    name, higher_is_better = "STS Spearman", True

    def __init__(
        self,
        model: BiEncoder,
        pairs: Sequence[tuple[str, str]],
        gold: Sequence[float],
        *,
        seed: int = 0,
    ) -> None:
        if len(pairs) < 4 or min(gold) == max(gold):
            raise EvaluationError(
                f"{len(pairs)} pairs with {len({*gold})} different scores cannot judge heads; give "
                "at least 4 pairs with different scores."
            )
        self._model = model.requires_grad_(False)
        prompt = model.prompts.get(model.default_prompt_name or "", "")
        texts = [prompt + text for pair in pairs for text in pair]
        self._ids, _ = model.tokenizer.encode(texts)
        scores = np.asarray(gold, dtype=np.float64)
        self._gold = (scores - scores.min()) / (scores.max() - scores.min())
        rows = np.random.default_rng(seed).permutation(len(pairs))
        self._fit, self._test = rows[: len(rows) // 2], rows[len(rows) // 2 :]

    @property
    def encoder(self) -> Encoder:
        """The encoder of the model."""
        return self._model.encoder

    def fit_batches(self) -> Iterator[FitBatch]:
        """Yield batches of the first half, on which the importance of heads is estimated."""
        for rows in np.array_split(self._fit, -(-len(self._fit) // _ROWS)):
            packed = self._pack(rows)
            groups = torch.from_numpy(packed.pair_of_text).to(packed.back.device)
            of_token = groups[packed.tokens.text_of_row]
            yield FitBatch(of_token, len(rows), partial(self._losses, rows))

    def _losses(self, rows: Ints) -> Tensor:
        """Compute the squared difference between cosine and scaled gold score of each pair."""
        cosines = self._cosines(rows)
        return (cosines - torch.from_numpy(self._gold[rows]).to(cosines)).square()

    def _cosines(self, rows: Ints) -> Tensor:
        packed = self._pack(rows)
        vectors = F.normalize(self._model(packed.tokens), dim=-1)[packed.back]
        return (vectors[0::2] * vectors[1::2]).sum(-1)

    def _pack(self, rows: Ints) -> _PackedPairs:
        """Pack both texts of each pair, ordered by length."""
        texts = np.stack([2 * rows, 2 * rows + 1], axis=1).ravel()
        order = np.argsort([len(self._ids[text]) for text in texts], kind="stable")
        device = self.encoder.embeddings.word.weight.device
        ids = [self._ids[texts[place]] for place in order]
        back = torch.from_numpy(np.argsort(order)).to(device)
        return _PackedPairs(PackedTokens.from_lists(ids, device=device), order // 2, back)

    @torch.no_grad()
    def score(self) -> float:
        """Spearman correlation over the pairs of the second half."""
        parts = np.array_split(self._test, -(-len(self._test) // _ROWS))
        predicted = torch.cat([self._cosines(part) for part in parts]).cpu().numpy()
        return spearman(predicted, self._gold[self._test])


class _PackedPairs(NamedTuple):
    """Texts of pairs in one batch, ordered by length.

    Attributes:
        tokens: The batch.
        pair_of_text: Index of the pair of each text of the batch.
        back: Indices in the batch of both texts of the first pair, of the second pair and so on,
            int64.
    """

    tokens: PackedTokens
    pair_of_text: Ints
    back: Tensor


def _by_length(batch: MaskedBatch) -> MaskedBatch:
    """Put a batch in the encoder's order, in which texts of equal length are adjacent."""
    ordered = batch.tokens.by_length()
    positions = ordered.ordered_rows(batch.positions)
    return MaskedBatch(ordered.tokens, positions, batch.labels, batch.pair_labels)
