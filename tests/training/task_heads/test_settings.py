from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.training.task_heads.settings import HeadDataConfig, split_rows


@settings(max_examples=20)
@given(st.lists(st.text(max_size=4), min_size=60, max_size=90), st.integers(1, 20))
def test_copies_stay_together_and_smaller_sets_are_parts_of_larger_ones(
    texts: list[str], limit: int
) -> None:
    keys = [*texts, *texts, *(str(n) for n in range(50))]
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


def test_what_leaves_nothing_is_refused() -> None:
    with pytest.raises(CorpusError, match="1 of 1 rows are left to train on, 0 are held out"):
        split_rows(["a"], ["a"], HeadDataConfig(train=Path("a"), held_out=1e-9))
    with pytest.raises(ConfigError, match=r"data\.held_out is 1\.0"):
        HeadDataConfig(train=Path("a"), held_out=1.0)
    with pytest.raises(ConfigError, match=r"data\.limit is 0"):
        HeadDataConfig(train=Path("a"), limit=0)
