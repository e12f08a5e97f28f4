"""Objectives of sentence encoders: losses summed over rows, and losses over a whole batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError
from sbert_search.models.embedding_losses import (
    CONCATENATIONS,
    Distance,
    all_triplets,
    angle_similarity,
    candidate_scores,
    concatenate,
    contrastive,
    cosent,
    cosine_mse,
    distances,
    embedding_cosine,
    embedding_mse,
    hardest_triplets,
    kl_divergence,
    margin_mse,
    matryoshka,
    multiple_negatives_ranking,
    online_contrastive,
    semi_hard_triplets,
    triplet,
)
from sbert_search.models.static_model import SentenceModel
from sbert_search.train.data.examples import TargetKind
from sbert_search.train.data.text_dataset import StepTexts
from sbert_search.train.loop.objective import Batch, Losses

LossName = Literal[
    "softmax",
    "cosine_mse",
    "contrastive",
    "online_contrastive",
    "triplet",
    "all_triplets",
    "hardest_triplets",
    "semi_hard_triplets",
    "mnrl",
    "cosent",
    "angle",
    "margin_mse",
    "score_divergence",
    "embedding_mse",
    "embedding_cosine",
]
Teacher = Literal["bi-encoder", "cross-encoder"]
_Factor = Annotated[float, Bounds(above=0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """The loss and its parameters.

    The comment of a parameter names the losses that use it. Other losses ignore the parameter.
    """

    name: LossName  # the loss
    margin: float = 1.0  # margin of triplet and contrastive losses
    distance: Distance = "euclidean"  # distance of triplet and contrastive losses
    scale: _Factor = 20.0  # factor of the cosines in mnrl, cosent, angle
    symmetric: bool = False  # whether mnrl also ranks the anchors for each positive
    temperature: _Factor = 1.0  # temperature of the scores in score_divergence
    l2: Annotated[float, Bounds(0)] = 0.0  # weight of the squared distance in embedding_cosine
    concatenation: tuple[str, ...] = ("u", "v", "|u-v|")  # input of the classifier in softmax
    matryoshka: tuple[int, ...] = ()  # sizes of truncated embeddings, whose losses are summed

    def __post_init__(self) -> None:
        check(self, table="loss.")
        if not self.concatenation:
            raise ConfigError('loss.concatenation is empty; name its parts, such as ["u", "v"].')
        for part in self.concatenation:
            if part not in CONCATENATIONS:
                known = ", ".join(CONCATENATIONS)
                raise ConfigError(f"loss.concatenation has {part!r}; known: {known}.")
        if any(size < 1 for size in self.matryoshka):
            raise ConfigError(
                f"loss.matryoshka is {list(self.matryoshka)}; each size must be at least 1."
            )
        if self.matryoshka and self.name == "softmax":
            raise ConfigError(
                "The loss softmax works on full embeddings only; remove loss.matryoshka."
            )

    @property
    def kind(self) -> LossKind:
        """The data that the configured loss needs."""
        return KINDS[self.name]


@dataclass(frozen=True, slots=True)
class LossKind:
    """The data that a loss needs."""

    fewest: int  # texts in a row
    most: int
    target: TargetKind = "nothing"  # that each row of the data files must have
    in_batch: bool = False  # compares the rows of a batch with each other: not a sum over rows
    # Texts of other rows are negatives, so equal texts must not share a batch. See "Equal texts are
    # separated only for in-batch negatives" in docs/decisions.md.
    no_duplicates: bool = False
    by_class: bool = False  # texts of a class in a batch are positives of each other
    teacher: Teacher | None = None  # model whose outputs are the targets

    def describe(self) -> str:
        """Describe the rows that the loss takes."""
        texts = {1: "single texts", 2: "pairs of texts", 3: "triplets of texts"}[self.fewest]
        return texts if self.target == "nothing" else f"{texts} with a {self.target}"


_MANY = 1 << 10  # maximum number of texts of a row; so large that it is no limit
KINDS: Mapping[LossName, LossKind] = {
    "softmax": LossKind(2, 2, "label"),
    "cosine_mse": LossKind(2, 2, "score"),
    "contrastive": LossKind(2, 2, "label"),
    "online_contrastive": LossKind(2, 2, "label", in_batch=True),
    "triplet": LossKind(3, 3),
    "all_triplets": LossKind(1, 1, "label", in_batch=True, by_class=True),
    "hardest_triplets": LossKind(1, 1, "label", in_batch=True, by_class=True),
    "semi_hard_triplets": LossKind(1, 1, "label", in_batch=True, by_class=True),
    "mnrl": LossKind(2, _MANY, in_batch=True, no_duplicates=True),
    "cosent": LossKind(2, 2, "score", in_batch=True),
    "angle": LossKind(2, 2, "score", in_batch=True),
    "margin_mse": LossKind(3, _MANY, teacher="cross-encoder"),
    "score_divergence": LossKind(3, _MANY, teacher="cross-encoder"),
    "embedding_mse": LossKind(1, _MANY, teacher="bi-encoder"),
    "embedding_cosine": LossKind(1, _MANY, teacher="bi-encoder"),
}
BINARY = ("contrastive", "online_contrastive")  # losses of two labels, 0: dissimilar, 1: similar


class Siamese(nn.Module):
    """A bi-encoder, and the classifier of the softmax loss, which is not saved with the model."""

    def __init__(self, bi_encoder: SentenceModel, classifier: nn.Linear | None = None) -> None:
        super().__init__()
        self.bi_encoder, self.classifier = bi_encoder, classifier

    def forward(self, texts: StepTexts, n_rows: int) -> Tensor:
        """Embed all texts of a batch in one pass; float (n_rows, most texts of a row, dim)."""
        return texts.by_row(self.bi_encoder(texts.tokens), n_rows)


RowLoss = Callable[[Tensor, Tensor, LossConfig], Tensor]
"""Maps embeddings (rows, width, dim), targets (rows, ...) and settings to losses, (rows,)."""

_ROW_LOSSES: Mapping[LossName, RowLoss] = {
    "cosine_mse": lambda e, t, c: cosine_mse(e[:, 0], e[:, 1], t),
    "contrastive": lambda e, t, c: contrastive(
        e[:, 0], e[:, 1], t, margin=c.margin, distance=c.distance
    ),
    "triplet": lambda e, t, c: triplet(
        e[:, 0], e[:, 1], e[:, 2], margin=c.margin, distance=c.distance
    ),
    "margin_mse": lambda e, t, c: margin_mse(candidate_scores(e[:, 0], e[:, 1:]), t),
    "score_divergence": lambda e, t, c: kl_divergence(
        candidate_scores(e[:, 0], e[:, 1:]), t, temperature=c.temperature
    ),
    "embedding_mse": lambda e, t, c: embedding_mse(e, t),
    "embedding_cosine": lambda e, t, c: embedding_cosine(e, t, l2=c.l2),
}


class RowObjective:
    """A loss that is summed over rows; the softmax loss also reports the classifier's accuracy."""

    def __init__(self, config: LossConfig) -> None:
        self.config = config

    def __call__(self, model: nn.Module, batch: Batch) -> Losses:
        """Embed the texts, then compute the loss in fp32."""
        assert isinstance(model, Siamese)
        assert batch.targets is not None
        name, n_rows = self.config.name, len(batch.rows)
        embeddings = model(batch.inputs, n_rows)
        with torch.autocast(embeddings.device.type, enabled=False):
            if name != "softmax":
                losses = _at_dims(_ROW_LOSSES[name], embeddings, batch.targets, self.config)
                return Losses({name: (losses.sum(), n_rows)})
            logits = pair_logits(model, embeddings, self.config)
            losses = cross_entropy(logits, batch.targets, reduction="sum")
            right = (logits.argmax(dim=1) == batch.targets).sum()
            return Losses({name: (losses, n_rows)}, metrics={"accuracy": (right, n_rows)})


def pair_logits(model: Siamese, embeddings: Tensor, config: LossConfig) -> Tensor:
    """Return the logits of the classifier, float (n, classes), for embeddings (n, 2, dim)."""
    assert model.classifier is not None
    features = concatenate(embeddings[:, 0], embeddings[:, 1], config.concatenation)
    logits: Tensor = model.classifier(features)
    return logits


class BatchObjective:
    """A loss over all embeddings of a step, from all micro-batches and ranks."""

    def __init__(self, config: LossConfig) -> None:
        self.config = config

    def embed(self, model: nn.Module, batch: Batch) -> Tensor:
        """Embed the texts of a micro-batch, float (rows, width, dim)."""
        embeddings: Tensor = model(batch.inputs, len(batch.rows))
        return embeddings

    def loss(self, embeddings: Tensor, targets: Tensor | None) -> Losses:
        """Compute the loss of all embeddings of a step."""
        assert targets is not None
        loss = _BATCH_LOSSES[self.config.name]
        return Losses({self.config.name: (_at_dims(loss, embeddings, targets, self.config), 1)})


def _at_dims(loss: RowLoss, embeddings: Tensor, targets: Tensor, config: LossConfig) -> Tensor:
    """Compute the loss of full embeddings, or the sum of the losses at each ``matryoshka`` size."""
    if not config.matryoshka:
        return loss(embeddings, targets, config)

    def at_dim(e: Tensor) -> Tensor:
        if config.kind.teacher != "bi-encoder":
            return loss(e, targets, config)
        return loss(e, normalize(targets[:, : e.shape[-1]], dim=-1), config)

    return matryoshka(at_dim, embeddings, config.matryoshka)


def _mnrl(e: Tensor, t: Tensor, c: LossConfig) -> Tensor:
    """Compute the multiple negatives ranking loss; ``t`` is the number of texts of each row."""
    present = torch.arange(e.shape[1], device=e.device) < t.unsqueeze(1)
    candidates = torch.cat([e[:, 1], e[:, 2:][present[:, 2:]]])
    return multiple_negatives_ranking(e[:, 0], candidates, scale=c.scale, symmetric=c.symmetric)


def _triplets_by_label(loss: Callable[..., Tensor]) -> RowLoss:
    return lambda e, t, c: loss(e[:, 0], t, margin=c.margin, distance=c.distance)


# These losses have the signature of `RowLoss`, but each returns one value for the whole batch.
_BATCH_LOSSES: Mapping[LossName, RowLoss] = {
    "mnrl": _mnrl,
    "cosent": lambda e, t, c: cosent(
        torch.cosine_similarity(e[:, 0], e[:, 1], dim=-1), t, scale=c.scale
    ),
    "angle": lambda e, t, c: cosent(angle_similarity(e[:, 0], e[:, 1]), t, scale=c.scale),
    "online_contrastive": lambda e, t, c: online_contrastive(
        distances(e[:, 0], e[:, 1], c.distance), t, margin=c.margin
    ),
    "all_triplets": _triplets_by_label(all_triplets),
    "hardest_triplets": _triplets_by_label(hardest_triplets),
    "semi_hard_triplets": _triplets_by_label(semi_hard_triplets),
}
