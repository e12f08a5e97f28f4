"""The project's own encoder under the loop: masked words, and pairs of texts."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sbert_search.base.seed import generator
from sbert_search.models.embedding_losses import multiple_negatives_ranking
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import save_encoder
from sbert_search.models.logit_losses import IGNORED, token_cross_entropy
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.loop.objective import Batch, Batches, Losses, Rows

VOCAB, MASK = 200, 4


class MaskedModel(nn.Module):
    """An encoder whose word embeddings also tell the words that were masked."""

    def __init__(self, *, hidden: int = 32, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        torch.manual_seed(1)
        config = EncoderConfig(
            vocab_size=VOCAB,
            hidden_size=hidden,
            layers=layers,
            heads=max(1, hidden // 32),
            intermediate_size=4 * hidden,
            hidden_dropout=dropout,
            attention_dropout=dropout,
        )
        self.encoder = Encoder(config)
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def states(self, tokens: PackedTokens) -> Tensor:
        states: Tensor = self.encoder(tokens).hidden_states
        return states

    def save(self, folder: Path) -> None:
        save_encoder(self.encoder, folder)


def masked_objective(model: nn.Module, batch: Batch) -> Losses:
    assert isinstance(model, MaskedModel)
    inputs = batch.inputs
    assert isinstance(inputs, dict)
    labels = inputs["labels"]
    at = (labels != IGNORED).nonzero().squeeze(1)  # logits at masked positions only
    words = model.encoder.embeddings.word.weight
    logits = linear(model.states(inputs["tokens"])[at], words, model.bias)
    return Losses({"mlm": token_cross_entropy(logits, labels[at])})


def masked_batches(config: TrainConfig, rows: int = 200, longest: int = 20) -> Batches:
    """Texts of words drawn with falling frequency; the mask is a function of (seed, epoch, row)."""
    draw = np.random.default_rng(3)
    texts = [draw.geometric(0.1, draw.integers(3, longest + 1)) % 150 + 5 for _ in range(rows)]

    def collate(chosen: Rows, epoch: int) -> Batch:
        ids, labels = [], []
        for row in chosen:
            masked = generator(config.seed, "mask", epoch, int(row)).random(len(texts[row])) < 0.15
            ids.append(np.where(masked, MASK, texts[row]).tolist())
            labels.append(np.where(masked, texts[row], IGNORED))
        goal = torch.from_numpy(np.concatenate(labels))
        inputs = {"tokens": PackedTokens.from_lists(ids), "labels": goal}
        return Batch(inputs, chosen, {"mlm": int((goal != IGNORED).sum())})

    lengths = [len(text) for text in texts]
    return Batches(lengths, collate, config.batching, seed=config.seed, fingerprint="masked 3")


class MeanPairs:
    """Pairs of texts, embedded by the mean of their states, as one packed forward."""

    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, MaskedModel)
        tokens = batch.inputs
        assert isinstance(tokens, PackedTokens)
        states = model.states(tokens)
        lengths = torch.tensor(tokens.lengths).unsqueeze(1)
        total = torch.zeros(len(lengths), states.shape[1]).index_add_(
            0, tokens.text_of_row, states.float()
        )
        return (total / lengths).view(len(batch.rows), 2, -1)

    def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
        return Losses({"mnrl": (multiple_negatives_ranking(embeddings[:, 0], embeddings[:, 1]), 1)})


def pairs_of_texts(
    config: TrainConfig, rows: int = 200, *, shortest: int = 3, longest: int = 20
) -> Batches:
    draw = np.random.default_rng(4)
    sizes = draw.integers(shortest, longest + 1, rows)
    texts = [draw.integers(5, VOCAB, size).tolist() for size in sizes]
    others = [draw.permutation(text).tolist() for text in texts]

    def collate(chosen: Rows, epoch: int) -> Batch:
        both = [text for row in chosen for text in (texts[row], others[row])]
        return Batch(PackedTokens.from_lists(both), chosen)

    return Batches(2 * sizes, collate, config.batching, seed=config.seed, fingerprint="pairs 4")
