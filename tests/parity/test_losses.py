"""Losses against those of sentence-transformers: value and gradient on the same embeddings."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch
from sentence_transformers.sentence_transformer import losses as library
from sentence_transformers.sentence_transformer.losses.batch_hard_triplet import (
    BatchHardTripletLossDistanceFunction,
)
from sentence_transformers.sentence_transformer.losses.contrastive import SiameseDistanceMetric
from sentence_transformers.sentence_transformer.losses.triplet import TripletDistanceMetric
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear

from sbert_search.models.embedding_losses import (
    Distance,
    all_triplets,
    angle_similarity,
    candidate_scores,
    concatenate,
    contrastive,
    cosent,
    cosine_mse,
    distances,
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

BATCH, DIM = 16, 6
SCORES = torch.linspace(0, 1, BATCH).roll(5).round(decimals=1)  # some are equal
BINARY = (torch.arange(BATCH) % 3 == 0).long()
CLASSES = torch.arange(BATCH) // 2 % 5
TEACHER = torch.linspace(-3, 9, 3 * BATCH).view(BATCH, 3).sin() * 4

Loss = Callable[..., Tensor]  # takes the columns of embeddings
Case = tuple[int, Loss, Any, Tensor | None]  # columns, ours, the library's loss, its labels
CASES: dict[str, Case] = {}


def case(name: str, columns: int, ours: Loss, theirs: type, labels: Any, **settings: Any) -> None:
    CASES[name] = (columns, ours, cast("Any", theirs)(model=None, **settings), labels)


case(
    "cosine mse",
    2,
    lambda u, v: cosine_mse(u, v, SCORES).mean(),
    library.CosineSimilarityLoss,
    SCORES,
)
case("cosent", 2, lambda u, v: cosent(cosine_similarity(u, v), SCORES), library.CoSENTLoss, SCORES)
case("angle", 2, lambda u, v: cosent(angle_similarity(u, v), SCORES), library.AnglELoss, SCORES)
case(
    "mnrl",
    2,
    lambda u, v: multiple_negatives_ranking(u, v),
    library.MultipleNegativesRankingLoss,
    None,
)
case(
    "mnrl, two hard negatives",
    4,
    lambda u, *others: multiple_negatives_ranking(u, torch.cat(others), scale=7.0),
    library.MultipleNegativesRankingLoss,
    None,
    scale=7.0,
)
case(
    "mnrl, both directions",
    3,
    lambda u, *others: multiple_negatives_ranking(u, torch.cat(others), symmetric=True),
    library.MultipleNegativesRankingLoss,
    None,
    directions=("query_to_doc", "doc_to_query"),
    partition_mode="per_direction",
)
case(
    "margin mse",
    4,
    lambda *columns: margin_mse(_scores(*columns), TEACHER).mean(),
    library.MarginMSELoss,
    TEACHER,
)
case(
    "divergence",
    4,
    lambda *columns: kl_divergence(_scores(*columns), TEACHER, temperature=2.0).mean(),
    library.DistillKLDivLoss,
    TEACHER,
    temperature=2.0,
)


def _scores(anchors: Tensor, *candidates: Tensor) -> Tensor:
    return candidate_scores(anchors, torch.stack(candidates, dim=1))


def _add_distances(kind: Distance, pair: Any, three: Any, batch: Any) -> None:
    case(
        f"triplet, {kind}",
        3,
        lambda u, v, w: triplet(u, v, w, margin=0.7, distance=kind).mean(),
        library.TripletLoss,
        None,
        distance_metric=three,
        triplet_margin=0.7,
    )
    case(
        f"contrastive, {kind}",
        2,
        lambda u, v: contrastive(u, v, BINARY, margin=1.5, distance=kind).mean(),
        library.ContrastiveLoss,
        BINARY,
        distance_metric=pair,
        margin=1.5,
    )
    case(
        f"online contrastive, {kind}",
        2,
        lambda u, v: online_contrastive(distances(u, v, kind), BINARY, margin=1.5),
        library.OnlineContrastiveLoss,
        BINARY,
        distance_metric=pair,
        margin=1.5,
    )
    for mined, theirs in (
        (all_triplets, library.BatchAllTripletLoss),
        (hardest_triplets, library.BatchHardTripletLoss),
        (semi_hard_triplets, library.BatchSemiHardTripletLoss),
    ):
        case(
            f"{mined.__name__}, {kind}",
            1,
            partial(mined, labels=CLASSES, margin=0.5, distance=kind),
            theirs,
            CLASSES,
            distance_metric=batch,
            margin=0.5,
        )


_add_distances(
    "cosine",
    SiameseDistanceMetric.COSINE_DISTANCE,
    TripletDistanceMetric.COSINE,
    BatchHardTripletLossDistanceFunction.cosine_distance,
)
_add_distances(
    "euclidean",
    SiameseDistanceMetric.EUCLIDEAN,
    TripletDistanceMetric.EUCLIDEAN,
    BatchHardTripletLossDistanceFunction.euclidean_distance,
)


def gradients(columns: int, loss: Loss) -> tuple[Tensor, list[Tensor]]:
    torch.manual_seed(3)
    embeddings = [torch.randn(BATCH, DIM, requires_grad=True) for _ in range(columns)]
    value = loss(*embeddings)
    torch.autograd.backward(value)
    return value.detach(), [e.grad for e in embeddings if e.grad is not None]


def assert_equal(columns: int, ours: Loss, theirs: Loss) -> None:
    (mine, my_gradients), (other, their_gradients) = (
        gradients(columns, ours),
        gradients(columns, theirs),
    )
    assert len(my_gradients) == columns == len(their_gradients)
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)
    torch.testing.assert_close(my_gradients, their_gradients, rtol=0, atol=1e-5)
    assert any(gradient.any() for gradient in my_gradients)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(name: str) -> None:
    columns, ours, loss, labels = CASES[name]
    assert_equal(columns, ours, lambda *e: loss.compute_loss_from_embeddings(list(e), labels))


def test_embedding_mse() -> None:
    teacher = torch.randn(BATCH, DIM)
    loss: Any = cast("Any", library.MSELoss)(model=None)
    assert_equal(
        2,
        lambda u, v: embedding_mse(torch.stack([u, v], dim=1), teacher).mean(),
        lambda *e: loss.compute_loss_from_embeddings(list(e), [teacher, teacher]),
    )


class Fixed(nn.Module):
    """Stands where the library has a model: its embeddings are given."""

    def __init__(self, columns: Sequence[Tensor]) -> None:
        super().__init__()
        self.columns, self.device = columns, torch.device("cpu")

    def get_embedding_dimension(self) -> int:
        return DIM

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return {**features, "sentence_embedding": self.columns[features["column"]]}


@pytest.mark.parametrize("multiply", [False, True])
def test_softmax_of_a_classifier(multiply: bool) -> None:
    parts = ("u", "v", "|u-v|", "u*v")[: 4 if multiply else 3]
    weight, labels = torch.randn(3, len(parts) * DIM), torch.arange(BATCH) % 3

    def theirs(*columns: Tensor) -> Tensor:
        loss: Any = library.SoftmaxLoss(
            cast("Any", Fixed(columns)), DIM, 3, concatenation_sent_multiplication=multiply
        )
        loss.classifier.weight.data, loss.classifier.bias.data = weight, torch.zeros(3)
        return cast(Tensor, loss([{"column": 0}, {"column": 1}], labels))

    def ours(u: Tensor, v: Tensor) -> Tensor:
        return cross_entropy(linear(concatenate(u, v, parts), weight), labels)

    assert_equal(2, ours, theirs)


def test_matryoshka() -> None:
    dims, weights = [6, 4, 2], [1.0, 0.5, 0.25]

    def theirs(*columns: Tensor) -> Tensor:
        model: Any = Fixed(columns)
        loss = library.MatryoshkaLoss(
            model, library.MultipleNegativesRankingLoss(model), dims, weights
        )
        return cast(Tensor, loss([{"column": 0}, {"column": 1}], torch.empty(0)))

    def ours(u: Tensor, v: Tensor) -> Tensor:
        stacked = torch.stack([u, v])
        return matryoshka(lambda e: multiple_negatives_ranking(e[0], e[1]), stacked, dims, weights)

    assert_equal(2, ours, theirs)
