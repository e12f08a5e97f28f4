"""Evaluate a masked language model on held-out text: loss, perplexity, pseudo-perplexity."""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sbert_search.base.arrays import Ints
from sbert_search.base.progress import progress
from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.logit_losses import token_cross_entropy
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.masking import MaskSettings
from sbert_search.text.tokens.mlm_dataset import MaskedCorpus
from sbert_search.text.tokens.segments import SegmentSettings
from sbert_search.text.tokens.shard_writing import write_token_shards
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.specials import SpecialTokens, mask_vocabulary
from sbert_search.text.tokens.tokenizer import TextTokenizer

_ROWS = 32  # examples in one forward pass


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedMetrics:
    """The metrics of a masked language model on a text; loss and entropy are in nats.

    ``unigram_entropy`` is that of the text's token frequencies: the loss of the best model that
    ignores context. ``pseudo_perplexity`` is that of all tokens, each predicted from the other
    tokens of its example.
    """

    loss: float  # mean cross-entropy over the masked tokens
    perplexity: float
    accuracy: float  # share of the masked tokens that were predicted correctly
    masked: int  # number of masked tokens
    unigram_entropy: float
    pseudo_perplexity: float | None  # None if not requested
    pseudo_tokens: int  # number of tokens of pseudo_perplexity; 0 if not requested


def evaluate_masked(
    model: MaskedLanguageModel,
    reader: CorpusReader,
    *,
    max_len: int = 128,
    most: int = 512,
    pseudo: int = 0,
    rate: float = 0.15,
    wrapped: bool = False,
) -> MaskedMetrics:
    """Compute the loss and accuracy of a model on masked tokens; every call masks the same tokens.

    Examples of at most ``max_len`` tokens are filled with whole sentences, and at most ``most`` are
    chosen at even intervals. The pseudo-perplexity, of at most ``pseudo`` examples, is slow: for
    each token, the model reads a copy of the example in which only this token is masked. Of the
    share ``rate`` of masked tokens, 80 % become [MASK], 10 % a random token, 10 % stay. If the
    lines are ``wrapped`` at a fixed width, as in books, a line end inside a paragraph ends no
    sentence.

    Sources: Devlin et al. 2019, BERT, section 3.1 (arXiv:1810.04805); Salazar et al. 2020, Masked
    Language Model Scoring, section 2 (arXiv:1910.14659).
    """
    if most < 1 or pseudo < 0:
        raise ConfigError(f"most is {most} and pseudo is {pseudo}; use most >= 1 and pseudo >= 0.")
    tokenizer = model.tokenizer
    settings = SegmentSettings(kind="full-sentences", max_len=min(max_len, tokenizer.max_len))
    with tempfile.TemporaryDirectory() as scratch:
        shards = write_token_shards(
            reader, tokenizer.backend, Path(scratch) / "tokens", wrapped=wrapped
        )
        masks = MaskSettings(rate=rate, static=True)
        corpus = MaskedCorpus(shards, tokenizer, settings, masks, seed=0)
        entropy = unigram_entropy(shards, tokenizer)
        loss, right, masked = _masked_loss(model, corpus, _spread(len(corpus), most))
        if masked == 0:
            raise EvaluationError(
                f"No token of the text was masked at a rate of {rate:g}; evaluate a longer text."
            )
        pseudo_loss, pseudo_tokens = _pseudo_loss(model, corpus, _spread(len(corpus), pseudo))
    if not math.isfinite(loss + pseudo_loss):
        raise EvaluationError(
            "The model computes logits that are not finite (NaN or infinite); train it again."
        )
    return MaskedMetrics(
        loss=loss / masked,
        perplexity=math.exp(loss / masked),
        accuracy=right / masked,
        masked=masked,
        unigram_entropy=entropy,
        pseudo_perplexity=math.exp(pseudo_loss / pseudo_tokens) if pseudo_tokens else None,
        pseudo_tokens=pseudo_tokens,
    )


def unigram_entropy(shards: TokenShards, tokenizer: TextTokenizer) -> float:
    """Return the entropy of the token frequencies of a text, without special tokens, in nats."""
    special = mask_vocabulary(tokenizer).special
    counts = shards.counts()[: len(special)][~special[: shards.manifest.vocab_size]]
    counts = counts[counts > 0]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@torch.no_grad()
def _masked_loss(
    model: MaskedLanguageModel, corpus: MaskedCorpus, rows: Ints
) -> tuple[float, int, int]:
    """Return the sum of losses, the number of correct predictions, and that of masked tokens."""
    loss, right, masked = 0.0, 0, 0
    with progress("Predicting masked tokens", len(rows), "examples") as advance:
        for part in np.array_split(rows, math.ceil(len(rows) / _ROWS)):
            batch = _batch(model, corpus, part)
            logits = model(batch.tokens, batch.positions).token_logits
            total, count = token_cross_entropy(logits, batch.labels)
            loss, masked = loss + float(total), masked + int(count)
            right += int((logits.argmax(-1) == batch.labels).sum())
            advance(len(part))
    return loss, right, masked


@torch.no_grad()
def _pseudo_loss(model: MaskedLanguageModel, corpus: MaskedCorpus, rows: Ints) -> tuple[float, int]:
    """Mask ordinary tokens one at a time; return the sum of losses and the number of tokens."""
    loss, tokens = 0.0, 0
    mask_id = SpecialTokens.of(model.tokenizer).mask_id
    special = torch.from_numpy(mask_vocabulary(model.tokenizer).special)
    with progress("Predicting each token", len(rows), "examples") as advance:
        for row in rows:
            batch = _batch(model, corpus, np.array([row]))
            original = batch.tokens.input_ids.clone()
            original[batch.positions] = batch.labels  # undoes the masking
            ordinary = (~special.to(original.device)[original]).nonzero().squeeze(1)
            for some in torch.split(ordinary, _ROWS):
                copies = original.repeat(len(some), 1)
                copies[torch.arange(len(some)), some] = mask_id
                packed = PackedTokens(copies.flatten(), (len(original),) * len(some))
                positions = torch.arange(len(some), device=some.device) * len(original) + some
                logits = model(packed, positions).token_logits
                loss += float(token_cross_entropy(logits, original[some])[0])
            tokens += len(ordinary)
            advance(1)
    return loss, tokens


def _batch(model: MaskedLanguageModel, corpus: MaskedCorpus, rows: Ints) -> MaskedBatch:
    has_segment_ids = model.encoder.config.token_type_vocab > 1
    device = next(model.parameters()).device
    return MaskedBatch.of(corpus.read(rows), segments=has_segment_ids).to(device)


def _spread(n: int, most: int) -> Ints:
    """Choose at most ``most`` of the numbers below n, at even intervals."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
