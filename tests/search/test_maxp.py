from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import ConfigError
from sbert_search.search.rerankers import BestWindow, Reranker
from tests.models.tiny import tiny_cross_encoder

LONG = " ".join(["cat", "dog", "mat", "sun", "red", "far"] * 8)  # 48 tokens; a pair has 24
SHORT = "the red sun"


@pytest.fixture
def reranker(tmp_path: Path) -> Reranker:
    return Reranker(tiny_cross_encoder(tmp_path / "tokenizer"))


def test_a_long_text_is_worth_its_best_window(reranker: Reranker) -> None:
    seen: list[tuple[str, str]] = []
    plain = reranker.predict

    def predict(pairs: list[tuple[str, str]]) -> object:
        seen.extend(pairs)
        return plain(pairs)

    reranker.predict = predict  # type: ignore[assignment, method-assign]
    scores = BestWindow(reranker, 9).predict([("the cat", LONG), ("the cat", SHORT)])
    *windows, short = seen
    assert "".join(text for _, text in windows) == LONG  # nothing is lost
    assert len(windows) > 1
    assert not reranker.opened.engine.tokenizer.encode_pairs(windows).lost.any()
    assert scores[0] == pytest.approx(plain(windows).max())
    assert scores[1] == pytest.approx(plain([short])[0])


def test_windows_are_bounded_and_reach_from_start_to_end(reranker: Reranker) -> None:
    found = BestWindow(reranker, 2)._windows("the cat", LONG)
    assert len(found) == 2
    assert LONG.startswith(found[0])
    assert LONG.endswith(found[1])


def test_one_window_and_a_long_query_are_cut_as_ever(reranker: Reranker) -> None:
    pairs = [("the cat", LONG), ("the dog " * 20, LONG)]
    assert np.array_equal(BestWindow(reranker, 1).predict(pairs), reranker.predict(pairs))
    alone = pairs[1:]  # in the same batch, since another one may differ in the last bit
    assert np.array_equal(BestWindow(reranker).predict(alone), reranker.predict(alone))
    assert BestWindow(reranker).predict([]).shape == (0,)


def test_what_has_no_best_window_is_refused(reranker: Reranker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 1 window, not 0"):
        BestWindow(reranker, 0)
    several = Reranker(tiny_cross_encoder(tmp_path / "other", labels=("a", "b")))
    with pytest.raises(ConfigError, match="2 labels, so no single score"):
        BestWindow(several)
