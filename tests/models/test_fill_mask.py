from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sbert_search.errors import ModelError, QueryError
from sbert_search.models.pretraining import MaskedLanguageModel, fill_mask
from tests.models.tiny import TOKENS, tiny_bi_encoder, tiny_encoder, tiny_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> MaskedLanguageModel:
    return MaskedLanguageModel(tiny_encoder(), tiny_tokenizer(tmp_path)).eval()


def test_the_most_probable_words_of_each_hole_in_order(model: MaskedLanguageModel) -> None:
    with torch.no_grad():
        model.token_head.bias[TOKENS.index("mat")] = 9.0
        model.token_head.bias[TOKENS.index("sun")] = 8.0
    found = fill_mask(model, "the cat [MASK] on the [MASK].", k=2)
    assert [(w.hole, w.rank, w.token) for w in found] == [
        (0, 1, "mat"),
        (0, 2, "sun"),
        (1, 1, "mat"),
        (1, 2, "sun"),
    ]
    assert found[0].text == "the cat mat on the [MASK]."
    assert found[3].text == "the cat [MASK] on the sun."
    everything = fill_mask(model, "a [MASK]", k=10_000)
    assert len(everything) == len(TOKENS)
    assert sum(w.probability for w in everything) == pytest.approx(1, abs=1e-5)


def test_wrong_requests_are_named(model: MaskedLanguageModel, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="has no mask; write \\[MASK\\]"):
        fill_mask(model, "the cat sat")
    with pytest.raises(QueryError, match="20 tokens more than the 24"):
        fill_mask(model, "[MASK] " + "cat " * 41)
    with pytest.raises(QueryError, match="20 tokens more than the 24"):
        fill_mask(model, "cat " * 41 + "[MASK]")
    with pytest.raises(QueryError, match="k is 0"):
        fill_mask(model, "[MASK]", k=0)
    tiny_bi_encoder(tmp_path / "t").save(tmp_path / "bi")
    with pytest.raises(ModelError, match="has no masked-language head"):
        MaskedLanguageModel.load(tmp_path / "bi")
