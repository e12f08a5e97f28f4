from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, ModelError
from sbert_search.lab.anisotropy.remedies import LinearMap, require_free, save_with_map, whiten
from sbert_search.models.heads import Dense, Normalize
from tests.models.tiny import TEXTS, tiny_bi_encoder


def unit(vectors: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("truncate_dim", [None, 5])
def test_a_saved_model_gives_the_mapped_vectors_in_both_libraries(
    tmp_path: Path, normalised: bool, truncate_dim: int | None
) -> None:
    head = [Dense(16, 8), *([Normalize()] if normalised else [])]
    model = tiny_bi_encoder(tmp_path / "tokens", head=head, truncate_dim=truncate_dim)
    model.save(tmp_path / "old")
    before = Embedder(tmp_path / "old", precision="fp32").encode(TEXTS)
    fitted = LinearMap(np.random.default_rng(0).normal(size=(4, before.shape[1])), before.mean(0))
    save_with_map(tmp_path / "old", fitted, tmp_path / "new")
    expected = unit(fitted(before)) if normalised else fitted(before)
    ours = Embedder(tmp_path / "new", precision="fp32")
    assert ours.dim == 4
    assert ours.encode(TEXTS) == pytest.approx(expected, abs=1e-5)
    theirs = SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(TEXTS)
    assert theirs == pytest.approx(expected, abs=1e-5)


def test_a_whitened_model_has_white_vectors(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "old")
    texts = [f"{a} {b}" for a in ("cat", "dog", "sun", "mat", "red") for b in "bcdefghijk"]
    fitted = whiten(Embedder(tmp_path / "old", precision="fp32").encode(texts), dim=6)
    save_with_map(tmp_path / "old", fitted, tmp_path / "new")
    white = Embedder(tmp_path / "new", precision="fp32").encode(texts)
    assert np.cov(white, rowvar=False, bias=True) == pytest.approx(np.eye(6), abs=1e-3)


def test_no_model_is_overwritten(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "old")
    fitted = LinearMap(np.eye(16), np.zeros(16))
    with pytest.raises(ModelError, match="old"):
        save_with_map(tmp_path / "old", fitted, tmp_path / "old")
    with pytest.raises(ConfigError, match="old already exists; name a new folder"):
        require_free(tmp_path / "old")
    (tmp_path / "empty").mkdir()
    require_free(tmp_path / "empty")
    require_free(tmp_path / "absent")
