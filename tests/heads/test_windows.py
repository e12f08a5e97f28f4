"""Windows of a long context are those of transformers, and cover every token."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from sbert_search.heads.windows import encode_windows
from tests.models.tiny import tiny_tokenizer

QUESTION, CONTEXT = "the cat sat?", "a dog ran far away, then it slept in the red sun. the end" * 2


@pytest.mark.parametrize("context", [CONTEXT, "a dog"])
@pytest.mark.parametrize("overlap", [0, 3, 7])
def test_windows_are_those_of_transformers(tmp_path: Path, overlap: int, context: str) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    encoded = theirs(
        QUESTION,
        context,
        truncation="only_second",
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = encode_windows(tokenizer, QUESTION, context, overlap=overlap)
    assert [window.ids for window in windows] == encoded["input_ids"]
    assert [window.types for window in windows] == encoded["token_type_ids"]
    for number, window in enumerate(windows):
        owners = encoded.sequence_ids(number)
        own = [n for n, owner in enumerate(owners) if owner == 1]
        assert window.offsets == [encoded["offset_mapping"][number][n] for n in own]
        assert not own or window.start == own[0]


def test_an_empty_context_has_one_window(tmp_path: Path) -> None:
    (window,) = encode_windows(tiny_tokenizer(tmp_path), QUESTION, "")
    assert (window.offsets, window.start) == ([], len(window.ids) - 1)


def test_a_long_question_leaves_half_of_a_window(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    windows = encode_windows(tokenizer, "cat " * 50, CONTEXT, overlap=500)
    assert all(len(window.ids) <= tokenizer.max_len for window in windows)
    covered = {offset for window in windows for offset in window.offsets}
    ((_, whole),) = tokenizer.encode_offsets([CONTEXT])
    assert covered == set(whole)
