from __future__ import annotations

import pytest
import torch

from sbert_search.models.encoder.packed import PackedTokens, Run

TEXTS = [[5, 6, 7], [8], [9, 10, 11], [12, 13]]


def test_lists_are_laid_end_to_end() -> None:
    tokens = PackedTokens.from_lists(TEXTS, [[0, 0, 1], [0], [0, 1, 1], [0, 0]])
    assert tokens.input_ids.tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert tokens.token_type_ids is not None
    assert tokens.token_type_ids.tolist() == [0, 0, 1, 0, 0, 1, 1, 0, 0]
    assert tokens.lengths == (3, 1, 3, 2)
    assert tokens.total == 9
    assert tokens.starts.tolist() == [0, 3, 4, 7, 9]
    assert tokens.first_rows.tolist() == [0, 3, 4, 7]
    assert tokens.positions.tolist() == [0, 1, 2, 0, 0, 1, 2, 0, 1]
    assert tokens.text_of_row.tolist() == [0, 0, 0, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_left_out_on_either_side(left: bool) -> None:
    ids = torch.tensor([[0, 8, 9], [0, 0, 7]] if left else [[8, 9, 0], [7, 0, 0]])
    tokens = PackedTokens.from_padded(ids, (ids > 0).long(), torch.ones_like(ids))
    assert tokens.input_ids.tolist() == [8, 9, 7]
    assert tokens.lengths == (2, 1)
    assert tokens.token_type_ids is not None
    assert tokens.token_type_ids.tolist() == [1, 1, 1]


def test_pad_undoes_packing() -> None:
    tokens = PackedTokens.from_lists(TEXTS)
    padded = tokens.pad(tokens.input_ids, -1)
    assert padded.tolist() == [[5, 6, 7], [8, -1, -1], [9, 10, 11], [12, 13, -1]]
    assert tokens.pad(torch.ones(9, 2)).sum().item() == 18


def test_equal_lengths_come_together_and_go_back() -> None:
    tokens = PackedTokens.from_lists(TEXTS)
    ordered = tokens.by_length()
    assert ordered.tokens.input_ids.tolist() == [8, 12, 13, 5, 6, 7, 9, 10, 11]
    assert ordered.tokens.runs == [Run(0, 1, 1), Run(1, 1, 2), Run(3, 2, 3)]
    assert ordered.restore(ordered.tokens.input_ids).tolist() == tokens.input_ids.tolist()
    texts = ordered.restore_texts([torch.tensor(n) for n in ordered.tokens.lengths])
    assert [int(text) for text in texts] == [3, 1, 3, 2]


def test_runs_already_together_stay_in_place() -> None:
    tokens = PackedTokens.from_lists([[1, 2], [3, 4], [5], [6], [7, 8, 9]])
    ordered = tokens.by_length()
    assert ordered.tokens is tokens
    assert ordered.restore(tokens.input_ids) is tokens.input_ids


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "at least one text"),
        ([[1], [], [2]], "Text 1 of the batch has no tokens"),
    ],
)
def test_nothing_to_encode_is_refused(texts: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedTokens.from_lists(texts)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 3 tokens; input_ids has shape"):
        PackedTokens(torch.arange(4), (1, 2))
    with pytest.raises(ValueError, match=r"token_type_ids has shape \(4,\), not \(3,\)"):
        PackedTokens(torch.arange(3), (1, 2), torch.zeros(4, dtype=torch.int64))
