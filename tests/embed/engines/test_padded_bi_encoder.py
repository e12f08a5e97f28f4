"""The padded form of a bi-encoder gives the embeddings of the packed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sbert_search.embed.engines.export import PaddedBiEncoder
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import Normalize
from tests.models.encoder.small import ROTATED
from tests.models.tiny import tiny_encoder, tiny_tokenizer

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0], [11, 0, 0, 0]])
MASK = (IDS > 0).long()


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases of positions": {"position_buckets": 8, "initializer_range": 0.5},
    "rotations": ROTATED,
}


@pytest.mark.parametrize("pooling", [("mean",), ("cls", "max", "lasttoken")])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_embeddings_are_equal_and_the_model_stays_usable(
    tmp_path: Path, pooling: tuple[str, ...], shape: str
) -> None:
    encoder = tiny_encoder(**SHAPES[shape])
    model = BiEncoder(encoder, tiny_tokenizer(tmp_path), pooling=pooling, head=[Normalize()]).eval()
    tokens = PackedTokens.from_padded(IDS, MASK)
    expected = model(tokens)
    padded = PaddedBiEncoder(model).eval()
    torch.testing.assert_close(padded(IDS, MASK), expected, atol=1e-5, rtol=0)
    assert torch.equal(model(tokens), expected)
