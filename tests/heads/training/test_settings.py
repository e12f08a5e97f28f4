from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads.training import HeadDataConfig, class_weights, split_rows
from sbert_search.train.loop.schedule import FEWEST_ROWS


def hash_of(key: str) -> float:
    return xxhash.xxh3_64_intdigest(key.encode()) / 2**64


def test_copies_in_other_case_stay_together() -> None:
    keys = [text for n in range(500) for text in (f"Text number {n}", f" text  Number {n}\n")]
    kept, held = split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=0.2))
    alone = {" ".join(text.lower().split()) for text in held}
    assert len(held) == 2 * len(alone)
    assert len(kept) == len(keys) - len(held)


@settings(max_examples=20)
@given(st.lists(st.text(max_size=4), min_size=60, max_size=90), st.integers(1, 20))
def test_copies_stay_together_and_smaller_sets_are_parts_of_larger_ones(
    texts: list[str], limit: int
) -> None:
    keys = [*texts, *texts, *(str(n) for n in range(350))]
    data = HeadDataConfig(train=Path("a"), held_out=0.2)
    kept, held = split_rows(keys, keys, data)
    assert len(kept) + len(held) == len(keys)
    assert not {*kept} & {*held}
    few, same = split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=0.2, limit=limit))
    more, _ = split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=0.2, limit=limit + 5))
    assert same == held
    assert len(few) == limit
    assert {*few} <= {*more}


def test_rows_keep_their_order_and_a_tenth_is_about_a_tenth() -> None:
    keys = [str(n) for n in range(5000)]
    kept, held = split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=0.1))
    assert kept == sorted(kept, key=int)
    assert 440 < len(held) < 560
    dev = HeadDataConfig(train=Path("a"), dev=Path("b"), held_out=0.1)
    assert split_rows(keys, keys, dev) == (keys, [])


@given(st.integers(1, 400), st.floats(0.01, 0.9))
def test_as_many_rows_are_held_out_as_can_choose_or_none(n: int, share: float) -> None:
    keys = [str(n) for n in range(n)]
    kept, held = split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=share))
    assert sorted([*kept, *held]) == sorted(keys)
    assert not held or len(held) >= FEWEST_ROWS
    assert bool(held) == (sum(hash_of(key) >= 1 - share for key in keys) >= FEWEST_ROWS)


def test_too_few_held_out_rows_are_trained_on_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[str] = []
    monkeypatch.setattr("sbert_search.heads.training.note", notes.append)
    keys = [str(n) for n in range(32)]
    assert split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=0.1)) == (keys, [])
    assert "holds out 5 of 32 rows: fewer than 50 cannot show" in notes.pop()
    assert split_rows(keys, keys, HeadDataConfig(train=Path("a"))) == (keys, [])
    assert not notes


def test_what_leaves_nothing_is_refused() -> None:
    keys = [str(n) for n in range(60)]
    with pytest.raises(CorpusError, match="none of 60 rows is left to train on"):
        split_rows(keys, keys, HeadDataConfig(train=Path("a"), held_out=1 - 1e-9))
    with pytest.raises(ConfigError, match=r"data\.held_out is 1\.0"):
        HeadDataConfig(train=Path("a"), held_out=1.0)
    with pytest.raises(ConfigError, match=r"data\.limit is 0"):
        HeadDataConfig(train=Path("a"), limit=0)
    with pytest.raises(ConfigError, match=r"data\.train is an empty list"):
        HeadDataConfig(train=())


def test_weights_of_classes_have_mean_1_over_the_rows() -> None:
    targets = np.array([0] * 6 + [1] * 2 + [2] * 4)
    balanced = class_weights("balanced", "class", "abc", targets)
    assert balanced is not None
    torch.testing.assert_close(balanced, torch.tensor([2 / 3, 2.0, 1.0]))
    given = class_weights((1.0, 3.0, 1.0), "class", "abc", targets)
    assert given is not None
    assert float(given[targets].mean()) == pytest.approx(1.0)
    assert float(given[1] / given[0]) == pytest.approx(3.0)
    matrix = np.array([[1, 0], [1, 1], [1, 0], [0, 0]], dtype=np.float32)
    positive = class_weights("balanced", "several", "ab", matrix)
    assert positive is not None
    torch.testing.assert_close(positive, torch.tensor([1 / 3, 3.0]))
    assert class_weights("none", "class", "abc", targets) is None


def test_weights_of_classes_that_no_row_or_every_row_has() -> None:
    targets = np.array([0] * 3 + [1])
    balanced = class_weights("balanced", "class", "abc", targets)
    assert balanced is not None
    torch.testing.assert_close(balanced, torch.tensor([2 / 3, 2.0, 2.0]))
    given = class_weights((1.0, 3.0, 9.0), "class", "abc", targets)
    assert given is not None
    torch.testing.assert_close(given, torch.tensor([2 / 3, 2.0, 6.0]))
    matrix = np.array([[1, 0], [1, 0], [1, 0]], dtype=np.float32)
    positive = class_weights("balanced", "several", "ab", matrix)
    assert positive is not None
    torch.testing.assert_close(positive, torch.tensor([1 / 3, 3.0]))


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.0, -1.0), (1.0, np.nan), (np.inf, 1.0)])
def test_weights_must_be_finite_and_above_0(weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"class_weights is \[.*must be finite and above 0"):
        class_weights(weights, "class", "ab", np.array([0, 1]))
