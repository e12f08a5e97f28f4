from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError
from sbert_search.models.embedding_losses import multiple_negatives_ranking
from sbert_search.train.bi_encoder_losses import (
    BatchObjective,
    LossConfig,
    RowObjective,
    Siamese,
)
from sbert_search.train.data.text_dataset import StepTexts
from sbert_search.train.loop.objective import Batch


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"name": "softmax", "concatenation": ("u", "w")}, "loss.concatenation has 'w'; known: "),
        ({"name": "mnrl", "scale": 0.0}, "loss.scale is 0.0; it must be above 0"),
        ({"name": "mnrl", "temperature": float("nan")}, "loss.temperature is nan"),
        ({"name": "mnrl", "matryoshka": (8, 0)}, r"loss.matryoshka is \[8, 0\]; each size must be"),
        ({"name": "softmax", "matryoshka": (8,)}, "The loss softmax works on full embeddings only"),
    ],
)
def test_settings_that_a_loss_cannot_use_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossConfig(**setting)


def test_a_row_with_fewer_negatives_than_others_adds_no_candidate() -> None:
    rows = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))
    n_texts = torch.tensor([2, 4, 3])
    rows[0, 2:] = rows[2, 3:] = 0.0  # as `StepTexts.by_row` fills them
    candidates = torch.cat([rows[:, 1], rows[1, 2:], rows[2, 2:3]])
    expected = multiple_negatives_ranking(rows[:, 0], candidates, scale=20.0)
    ((total, count),) = BatchObjective(LossConfig(name="mnrl")).loss(rows, n_texts).sums.values()
    torch.testing.assert_close(total / count, expected)


class FixedEmbeddings(Siamese):
    """Gives the same embeddings for every batch."""

    def __init__(self, embeddings: Tensor) -> None:
        nn.Module.__init__(self)
        self.embeddings = embeddings

    def forward(self, texts: StepTexts, n_rows: int) -> Tensor:
        return self.embeddings


def test_prefixes_of_embeddings_learn_prefixes_of_the_teachers() -> None:
    config = LossConfig(name="embedding_mse", matryoshka=(2, 1))
    model = FixedEmbeddings(torch.tensor([[[3.0, 4.0]]]))  # at norm 1: (0.6, 0.8), and (1)
    targets = torch.tensor([[-2.0, 0.0]])  # (-1, 0), and (-1)
    losses = RowObjective(config)(model, Batch(None, np.arange(1), targets=targets))
    ((total, _),) = losses.sums.values()
    assert total.item() == pytest.approx((1.6**2 + 0.8**2) / 2 + 2**2)
