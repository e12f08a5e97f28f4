"""Find heads that can be removed, by masked tokens or by the similarity of pairs.

Each objective splits its data into two halves. The importance of heads is estimated on the first
half. The score after the removal of heads is measured on the second half.

Source: Michel et al. 2019, Are Sixteen Heads Really Better than One?, sections 2.3 and 4.1
(arXiv:1905.10650).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sbert_search.base.arrays import Ints
from sbert_search.base.progress import progress
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.isotropy import Array
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.masking import MaskSettings
from sbert_search.text.tokens.mlm_dataset import MaskedCorpus
from sbert_search.text.tokens.segments import SegmentSettings
from sbert_search.text.tokens.shard_writing import write_token_shards


@contextmanager
def gated(encoder: Encoder, gates: Tensor, groups: Tensor | None = None) -> Iterator[None]:
    """Multiply the outputs of heads by their gates in each forward pass inside the context.

    A block that several layers share, as in ALBERT, gets the gates of the layer that applies it. A
    mask decoder that applies the last block again, as in DeBERTa, gets the gates of the last layer.
    The encoder must not be prepared for inference by `freeze`, which replaces layers.

    ``gates`` are float (layers, heads); or (layers, groups, heads), with ``groups`` as the group of
    each token of the batch, int64 (total,), in the order in which the encoder computes the batch,
    where texts of equal length are adjacent.
    """
    config = encoder.config
    layers_of: list[list[int]] = [[] for _ in range(config.n_blocks)]
    for layer, block in enumerate(config.block_order):
        layers_of[block].append(layer)
    calls = [0] * config.n_blocks

    def restart(module: nn.Module, arguments: object) -> None:
        calls[:] = [0] * len(calls)

    def gate(block: int, context: Tensor) -> Tensor:
        layers = layers_of[block]
        of_layer = gates[layers[min(calls[block], len(layers) - 1)]]
        calls[block] += 1
        factor = of_layer if groups is None else of_layer[groups]
        heads = context.view(len(context), config.heads, config.head_dim)
        return (heads * factor.unsqueeze(-1)).view(context.shape)

    def hook(block: int) -> torch.utils.hooks.RemovableHandle:
        output = cast(Block, encoder.blocks[block]).attention.output
        return output.register_forward_pre_hook(lambda _, inputs: (gate(block, inputs[0]),))

    handles = [encoder.register_forward_pre_hook(restart)]
    handles += [hook(block) for block in range(config.n_blocks)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_ROWS = 32  # examples or pairs in one forward pass
_MAX_LEN = 128  # largest number of tokens of an example


class FitBatch(NamedTuple):
    """A batch of examples, on which the importance of heads is estimated."""

    groups: Tensor  # example of each token, int64 (total,), in the encoder's order
    examples: int  # number of examples
    losses: Callable[[], Tensor]  # of each example, float (examples,)


class MaskedTokens:
    """The mean loss of a masked language model over masked tokens, in nats.

    The model is in evaluation mode on its device. The texts need a few hundred words in total.
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
    loss, gold scores are scaled to the range from 0 to 1. The model is in evaluation mode on its
    device.
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
        cosines = self._cosines(rows)
        return (cosines - torch.from_numpy(self._gold[rows]).to(cosines)).square()

    def _cosines(self, rows: Ints) -> Tensor:
        packed = self._pack(rows)
        vectors = F.normalize(self._model(packed.tokens), dim=-1)[packed.back]
        return (vectors[0::2] * vectors[1::2]).sum(-1)

    def _pack(self, rows: Ints) -> _PackedPairs:
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
    """Texts of pairs in one batch, ordered by length."""

    tokens: PackedTokens
    pair_of_text: Ints  # the pair of each text of the batch
    back: Tensor  # places of both texts of the first pair, of the second and so on, int64


def _by_length(batch: MaskedBatch) -> MaskedBatch:
    """Put a batch in the encoder's order, in which texts of equal length are adjacent."""
    ordered = batch.tokens.by_length()
    positions = ordered.ordered_rows(batch.positions)
    return MaskedBatch(ordered.tokens, positions, batch.labels, batch.pair_labels)


Objective: TypeAlias = MaskedTokens | PairSimilarity
"""A task of an encoder, by which its heads are judged."""

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)  # shares of heads removed in the measurements
TOLERANCE = 0.01  # largest relative loss of score at which heads count as removable


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """The score without the ``removed`` least important heads."""

    removed: int
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """The importance of heads, and the score without the least important ones."""

    metric: str  # name of the score, such as MLM loss
    higher_is_better: bool
    # Mean absolute derivative of the loss with respect to the gate of each head, by layer; scaled
    # so that the squares of a layer add up to 1.
    importance: tuple[tuple[float, ...], ...]
    order: tuple[tuple[int, int], ...]  # (layer, head), from 1; the least important first
    removals: tuple[Removal, ...]  # for growing numbers of removed heads, from 0

    @property
    def removable(self) -> int:
        """The largest number of removed heads at which the score is at most 1 % worse."""
        sign = 1.0 if self.higher_is_better else -1.0
        whole = self.removals[0].score
        lowest = sign * whole - TOLERANCE * abs(whole)
        kept = [each.removed for each in self.removals if sign * each.score >= lowest]
        return max(kept, default=0)


def head_importance(objective: Objective) -> Array:
    """Mean absolute derivative of an example's loss by the gate of each head, (layers, heads)."""
    encoder = objective.encoder
    layers, heads = len(encoder.config.block_order), encoder.config.heads
    device = encoder.embeddings.word.weight.device
    total, examples = torch.zeros(layers, heads, device=device), 0
    with progress("Estimating importance", None, "examples") as advance:
        for batch in objective.fit_batches():
            gates = torch.ones(layers, batch.examples, heads, device=device, requires_grad=True)
            with gated(encoder, gates, batch.groups), torch.enable_grad():
                loss = batch.losses().sum()
            (slopes,) = torch.autograd.grad(loss, [gates])
            total += slopes.abs().sum(1)
            examples += batch.examples
            advance(batch.examples)
    importance: Array = (total / examples).double().cpu().numpy()
    return importance


def prune(objective: Objective) -> Pruning:
    """Estimate the importance of all heads, and measure the score without the least important."""
    raw = head_importance(objective)
    scaled = raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-30)
    ascending = np.argsort(scaled, axis=None, kind="stable")
    encoder = objective.encoder
    device = encoder.embeddings.word.weight.device
    numbers = sorted({round(share * scaled.size) for share in SHARES})
    removals = []
    with progress("Removing heads", len(numbers), "steps") as advance:
        for removed in numbers:
            gates = torch.ones(scaled.size, device=device)
            gates[torch.from_numpy(ascending[:removed].copy())] = 0
            with gated(encoder, gates.view(scaled.shape)):
                removals.append(Removal(removed=removed, score=objective.score()))
            advance(1)
    places = (np.unravel_index(place, scaled.shape) for place in ascending)
    return Pruning(
        metric=objective.name,
        higher_is_better=objective.higher_is_better,
        importance=tuple(tuple(layer) for layer in scaled.tolist()),
        order=tuple((int(layer) + 1, int(head) + 1) for layer, head in places),
        removals=tuple(removals),
    )
