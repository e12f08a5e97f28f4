"""Figures of every layer, from sums over its hidden states, and the sentence vectors.

The states of a batch are added to the sums and then discarded, so that the memory does not depend
on the number of texts. Only a few states are kept: those of up to 20 tokens of each sampled word,
and the state of one token of each of the first 1,000 texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.progress import progress
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import EvaluationError
from sbert_search.evaluate.metrics.isotropy import (
    Array,
    UnitSums,
    cosine_quantiles,
    deviations,
    effective_rank,
    explained_by_one,
    first_direction,
    pair_cosines,
)
from sbert_search.lab.inputs import special_ids
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.inference_layers import freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import pool
from sbert_search.text.tokens.batching import token_batches

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
HIGH = 0.9  # a pair with at least this cosine counts as high
DIMENSIONS = 5  # number of dimensions whose shares in the mean cosine are reported
OCCURRENCES = 20  # largest number of states that are kept of a word, for ``word_direction``


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFigures:
    """Figures of one layer. States of special tokens, such as [CLS], are left out.

    A word is an entry of the vocabulary; a token is an occurrence of a word in a text. An
    "adjusted" figure is the figure minus a baseline.

    Source: Ethayarajh 2019, sections 3.3 and 3.4 (arXiv:1909.00512), for ``self_similarity``,
    ``intra_sentence``, ``word_direction`` and the adjusted figures.
    """

    layer: int  # 0: the embeddings before the first block
    tokens: int  # number of tokens
    token_cosine: float  # mean of all pairs of tokens
    # Of pairs of tokens of different texts, for one random token of each of the first 1,000 texts.
    # The key is the level: 0.5 is the median.
    token_cosine_quantiles: dict[float, float]
    high_token_cosines: float  # share of the same pairs with a cosine of at least 0.9
    sentence_cosine: float  # mean of all pairs of sentences; a sentence is the mean of its tokens
    # Mean cosine of two tokens of the same word in different texts, averaged over sampled words;
    # None if no word occurs in at least five texts.
    self_similarity: float | None
    self_similarity_adjusted: float | None  # minus ``token_cosine``
    intra_sentence: float  # cosine of a token and its sentence, averaged over sentences
    intra_sentence_adjusted: float  # minus ``token_cosine``
    # Maximum explainable variance: the largest squared singular value of the states of up to 20
    # tokens of a word, divided by the sum of all their squared singular values. Averaged over the
    # sampled words; None if ``self_similarity`` is None.
    word_direction: float | None
    # Minus the same share for an equal number of random tokens, each of another sampled word. Words
    # repeat only if there are fewer sampled words than tokens.
    word_direction_adjusted: float | None
    first_direction: float  # share of the first principal direction in the variance of the tokens
    effective_rank: float  # of the states of the tokens minus their mean
    top_dimensions: dict[int, float]  # those with the largest shares in ``token_cosine``
    deviations: tuple[float, ...]  # standard, along the principal directions, descending


class Occurrences(NamedTuple):
    """Tokens of a batch that are occurrences of sampled words; int64 (n,) each."""

    rows: Tensor  # places among the analysed tokens of the batch, `BatchTokens.rows`
    words: Tensor  # index of the sampled word
    slots: Tensor  # number of the token among those of its word in all batches so far, from 0


class BatchTokens(NamedTuple):
    """The tokens of a batch whose states are analysed, the same for each layer."""

    rows: Tensor  # in the batch, int64 (n,); special tokens are left out
    firsts: Tensor  # place among the n tokens of the first token of each text, int64 (texts,)
    occurrences: Occurrences  # at most one for each word and text
    single: Tensor  # places among the n of one random token of each text below `_SINGLE`, int64


class LayerSums:
    """Running sums over the states of one layer, on a device that supports float64.

    ``counts`` has, for each sampled word, the number of its tokens that will be added; at least 2.
    """

    def __init__(self, dim: int, counts: Sequence[int], device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self._counts = np.asarray(counts, dtype=np.int64)
        self._tokens = self._sentences = 0
        self._total, self._unit_total, self._unit_squares = zeros(dim), zeros(dim), zeros(dim)
        self._products = zeros(dim, dim)
        self._mean_total, self._mean_squares = zeros(dim), zeros(dim)
        self._intra = zeros(1)
        self._word_totals = zeros(len(counts), dim)
        self._kept = torch.zeros(len(counts), OCCURRENCES, dim, device=device)
        self._single: list[Tensor] = []

    def add(self, states: Tensor, batch: BatchTokens) -> None:
        """Add the states of a batch, float (total, dim)."""
        tokens = states.to(self._total.device).index_select(0, batch.rows)
        inverse = 1 / torch.linalg.vector_norm(tokens, dim=1).clamp_min(1e-30)  # (n,)
        self._tokens += len(tokens)
        self._total += tokens.sum(0)
        self._unit_total += inverse @ tokens
        self._unit_squares += inverse.square() @ tokens.square()
        self._products += tokens.T @ tokens
        self._add_sentences(tokens, inverse, batch.firsts)
        rows, words, slots = batch.occurrences
        unit = tokens[rows] * inverse[rows, None]
        self._word_totals.index_add_(0, words, unit.double())
        first = slots < OCCURRENCES
        self._kept[words[first], slots[first]] = tokens[rows[first]]
        self._single.append(tokens[batch.single])

    def _add_sentences(self, tokens: Tensor, inverse: Tensor, firsts: Tensor) -> None:
        every = torch.arange(len(tokens), device=tokens.device)
        mean = F.embedding_bag(every, tokens, firsts, mode="mean")  # (texts, dim)
        mean_of_units = F.embedding_bag(every, tokens * inverse[:, None], firsts, mode="mean")
        unit_mean = mean / torch.linalg.vector_norm(mean, dim=1, keepdim=True).clamp_min(1e-30)
        # The mean of cos(mean, token) over the tokens of a sentence equals the dot product of two
        # vectors: the mean scaled to norm 1, and the mean of the tokens scaled to norm 1.
        self._intra += (unit_mean * mean_of_units).sum(dtype=torch.float64)
        self._sentences += len(mean)
        self._mean_total += unit_mean.sum(0)
        self._mean_squares += unit_mean.square().sum(0)

    def figures(self, layer: int, *, seed: int) -> LayerFigures:
        """Compute the figures of all states so far; the seed is for ``word_direction_adjusted``."""
        tokens = UnitSums(self._tokens, _array(self._unit_total), _array(self._unit_squares))
        sentences = UnitSums(self._sentences, _array(self._mean_total), _array(self._mean_squares))
        baseline = tokens.mean_cosine()
        alike, intra = self._self_similarity(), float(self._intra) / self._sentences
        one, random_one = self._word_directions(np.random.default_rng(seed))
        spread = deviations(_array(self._products), _array(self._total), self._tokens)
        single = torch.cat(self._single).cpu().numpy()
        return LayerFigures(
            layer=layer,
            tokens=self._tokens,
            token_cosine=baseline,
            token_cosine_quantiles=dict(cosine_quantiles(single, QUANTILES)),
            high_token_cosines=float((pair_cosines(single) >= HIGH).mean()),
            sentence_cosine=sentences.mean_cosine(),
            self_similarity=alike,
            self_similarity_adjusted=None if alike is None else alike - baseline,
            intra_sentence=intra,
            intra_sentence_adjusted=intra - baseline,
            word_direction=one,
            word_direction_adjusted=None if one is None else one - random_one,
            first_direction=first_direction(spread),
            effective_rank=effective_rank(spread),
            top_dimensions=tokens.dimension_shares(DIMENSIONS),
            deviations=tuple(spread.tolist()),
        )

    def _self_similarity(self) -> float | None:
        if not len(self._counts):
            return None
        n = self._counts
        squares = np.square(_array(self._word_totals)).sum(axis=1)
        return float(((squares - n) / (n * (n - 1))).mean())

    def _word_directions(self, draw: np.random.Generator) -> tuple[float | None, float]:
        if not len(self._counts):
            return None, 0.0
        kept, sizes = self._kept.cpu().numpy(), np.minimum(self._counts, OCCURRENCES)
        alone, mixed = [], []
        for word, size in enumerate(sizes):
            alone.append(explained_by_one(kept[word, :size]))
            others = draw.choice(len(sizes), size, replace=len(sizes) < size)
            mixed.append(explained_by_one(kept[others, draw.integers(sizes[others])]))
        return float(np.mean(alone)), float(np.mean(mixed))


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.cpu().numpy()
    return array


FEWEST_TEXTS = 5  # words that occur in fewer texts are not sampled
_WORDS = 200  # largest number of sampled words
_SINGLE = 1000  # number of texts of which one random token is kept
_BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class LayerPass:
    """The result of one pass of texts through a model."""

    layers: tuple[LayerFigures, ...]  # the embeddings, then each layer
    vectors: Vectors  # of the texts that have tokens to analyse, float32 (n, dim)


class _Words:
    """Finds the tokens to analyse: all tokens of a text except special tokens and the prompt."""

    def __init__(
        self,
        model: BiEncoder,
        ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        prompt: str,
        seed: int,
    ) -> None:
        special = special_ids(model.tokenizer)
        self.of_text = [
            [place for place in range(first, len(text)) if text[place] not in special]
            for first, text in zip(_first_places(model, texts, prompt), ids, strict=True)
        ]
        self._ids = ids
        texts_with = Counter(
            token
            for text, places in zip(ids, self.of_text, strict=True)
            for token in {text[place] for place in places}
        )
        common = sorted(token for token, n in texts_with.items() if n >= FEWEST_TEXTS)
        draw = np.random.default_rng(seed)
        chosen = draw.permutation(common)[:_WORDS].tolist() if common else []
        self.counts = [texts_with[token] for token in chosen]
        self._word_of = {token: word for word, token in enumerate(chosen)}
        self._seen = [0] * len(chosen)
        self._draw = draw

    def of_batch(self, texts: NDArray[np.int64], device: torch.device) -> BatchTokens:
        """Find the tokens to analyse in a batch; ``texts`` has the text numbers in batch order."""
        rows: list[int] = []
        occurrences: list[tuple[int, int, int]] = []
        single: list[int] = []
        firsts: list[int] = []
        start = 0  # row of the first token of the text in the batch
        for text in texts.tolist():
            places, ids, first = self.of_text[text], self._ids[text], len(rows)
            firsts.append(first)
            rows += [start + place for place in places]
            if text < _SINGLE:
                single.append(first + int(self._draw.integers(len(places))))
            found: dict[int, int] = {}
            for offset, place in enumerate(places):
                if (word := self._word_of.get(ids[place])) is not None:
                    found.setdefault(word, first + offset)
            for word, row in found.items():
                occurrences.append((row, word, self._seen[word]))
                self._seen[word] += 1
            start += len(ids)
        columns = np.array(occurrences, dtype=np.int64).reshape(-1, 3).T
        return BatchTokens(
            torch.tensor(rows, device=device),
            torch.tensor(firsts, device=device),
            Occurrences(*torch.from_numpy(columns.copy()).to(device)),
            torch.tensor(single, dtype=torch.int64, device=device),
        )


def _first_places(model: BiEncoder, texts: Sequence[str], prompt: str) -> list[int]:
    """Return the place of the first token of each text, after special tokens and the prompt.

    The place differs between texts: a byte-level tokenizer may join the space at the end of the
    prompt with the first word of the text.
    """
    before = len(model.tokenizer.single.before)
    if not prompt:
        return [before] * len(texts)
    prompted = model.tokenizer.encode_offsets([prompt + text for text in texts])
    return [before + sum(stop <= len(prompt) for _, stop in places) for _, places in prompted]


@torch.inference_mode()
def pass_texts(model: BiEncoder, texts: Sequence[str], *, seed: int = 0) -> LayerPass:
    """Compute the figures of every layer and the sentence vectors of at least two texts.

    The texts are in random order; the model's default prompt is put before each. The model is a
    bi-encoder in float32 on its device. Its linear layers may be replaced by faster layers; the
    model can then no longer be trained or saved.
    """
    prompt = model.prompts.get(model.default_prompt_name or "", "")
    ids, _ = model.tokenizer.encode([prompt + text for text in texts])
    words = _Words(model, ids, texts, prompt, seed)
    filled = np.array([text for text, places in enumerate(words.of_text) if places], dtype=np.int64)
    if len(filled) < 2:
        raise EvaluationError(
            f"{len(filled)} of {len(texts)} texts have tokens that the model knows; at least 2 are "
            "needed. Name another SOURCE."
        )
    if not model.encoder.frozen:
        freeze(model.encoder)
    device = next(model.parameters()).device
    on = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
    config = model.encoder.config
    n_layers = len(config.block_order) + 1
    sums = [LayerSums(config.hidden_size, words.counts, on) for _ in range(n_layers)]
    vectors = np.zeros((len(texts), model.dim), dtype=np.float32)
    lengths = np.array([len(ids[text]) for text in filled])
    with progress("Analysing", len(filled), "texts") as advance:
        for batch in token_batches(lengths, _BATCH_TOKENS):
            rows = filled[batch]
            tokens = PackedTokens.from_lists([ids[text] for text in rows], device=device)
            output = model.encoder(tokens, output_layers=True)
            found = words.of_batch(rows, on)
            for layer, states in zip(sums, output.layer_states, strict=True):
                layer.add(states, found)
            pooled = pool(output.hidden_states, tokens, model.pooling)
            vectors[rows] = model.head(pooled).float().cpu().numpy()
            advance(len(rows))
    figures = tuple(each.figures(number, seed=seed) for number, each in enumerate(sums))
    return LayerPass(figures, vectors[filled])
