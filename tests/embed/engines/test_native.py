from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.embed.engines import native
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.search.rerankers import Reranker
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder, tiny_encoder, tiny_tokenizer

WORDS = ["the", "cat", "sat", "far", "away", ".", ",", "!"]


def test_a_batch_is_filled_up_to_a_multiple_by_words_of_its_first_text() -> None:
    texts = [[1, 2, 3]] * 330  # 990 tokens, and 992 are 31 times 32
    assert native._filled(texts) == [*texts, [1, 2]]
    assert native._filled([[1, 2], [3] * 957]) == [[1, 2], [3] * 957, [1]]
    assert native._filled([[7, 8]] * 497) == [[7, 8]] * 512  # none is longer than the first
    assert native._filled([[7]] * 992) == [[7]] * 992
    assert native._filled([[7]] * 100) == [[7]] * 100  # 28 more would be a quarter


def test_a_model_that_reads_few_tokens_embeds_full_batches(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path / "tokens")
    tokenizer.max_len = 8
    BiEncoder(tiny_encoder(max_positions=8), tokenizer).save(tmp_path / "model")
    texts = ["the cat sat", "the cat"] * 110 + ["cat"]  # 993 tokens, so that 31 are added
    embedder = Embedder(tmp_path / "model", batch_tokens=1000)
    assert embedder.tokenize(texts).lengths.sum() == 993
    alone = Embedder(tmp_path / "model", batch_tokens=8).encode(texts)
    np.testing.assert_allclose(embedder.encode(texts), alone, rtol=0, atol=1e-6)


def test_batches_of_many_texts_have_few_sizes_and_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    tiny_cross_encoder(tmp_path / "pair tokens").save(tmp_path / "pairs")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 8))) for _ in range(2000)]
    sizes = list[int]()
    pack = PackedTokens.from_lists

    def packed(*args: Any, **options: Any) -> PackedTokens:
        batch = pack(*args, **options)
        if len(batch.input_ids) > 500:  # not the texts of a self-check, and not the last batch
            sizes.append(len(batch.input_ids))
        return batch

    monkeypatch.setattr(PackedTokens, "from_lists", staticmethod(packed))
    found = list[np.ndarray]()
    counts = list[int]()
    for rows in (32, 1):  # 1: nothing is filled up
        monkeypatch.setattr(native, "_FULL_ROWS", rows)
        sizes.clear()
        found.append(Embedder(tmp_path / "model", batch_tokens=1000).encode(texts))
        counts.append(len(set(sizes)))
        pairs = Reranker(tmp_path / "pairs", batch_tokens=1000)
        found.append(pairs.predict([("the cat", text) for text in texts]))
    np.testing.assert_allclose(found[0], found[2], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[1], found[3], rtol=0, atol=1e-6)
    assert len(found[0]) == len(texts)
    assert counts == [2, 5]
