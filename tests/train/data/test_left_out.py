"""Rows without texts that a loss would compare with an equal text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import TrainingError
from sbert_search.train.data.examples import Example
from sbert_search.train.data.left_out import without_copies, without_false_negatives
from sbert_search.train.data.text_dataset import RowTokens, TextBatches, arrange, check_targets
from sbert_search.train.loop.objective import BatchingConfig
from tests.models.tiny import tiny_tokenizer

SPELLINGS = ("the cat", "The Cat", " the  cat ", "a dog", "A DOG", "the mat", "sun", "red sun")


def folded(text: str) -> str:
    return " ".join(text.lower().split())


def rows_of(*rows: tuple[str, ...]) -> list[Example]:
    return [Example(row, None, f"file:{n}") for n, row in enumerate(rows, 1)]


def test_one_of_the_equal_texts_of_a_class_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [("the cat", "b"), ("a dog", "a"), ("The Cat", "b"), ("the cat", "a"), ("a dog", "a")]
    file = [Example((text,), label, f"file:{n}") for n, (text, label) in enumerate(texts)]
    rows = arrange([file], ["a", "b"])
    kept, tokens = without_copies(rows, RowTokens.of(rows, tiny_tokenizer(tmp_path)))
    assert kept.sources == ["file:0", "file:1", "file:3"]
    assert kept.targets is not None
    assert kept.targets.tolist() == [1, 0, 0]
    assert len(tokens.ids) == 3
    assert "2 of 5 rows are left out, such as the one at file:2" in capsys.readouterr().err


def test_classes_of_equal_texts_only_are_refused(tmp_path: Path) -> None:
    texts = [f"{word} {'sat ' * (n % 3)}" for n, word in enumerate(("cat", "dog", "sun"))]
    file = [Example((text,), str(n), "f") for n, text in enumerate(texts)]
    file += [Example((text.upper(),), str(n), "f") for n, text in enumerate(texts)]
    rows = arrange([file], ["0", "1", "2"])
    check_targets(rows, ["0", "1", "2"], "all_triplets", by_class=True)
    rows, _ = without_copies(rows, RowTokens.of(rows, tiny_tokenizer(tmp_path)))
    with pytest.raises(TrainingError, match="Each of the 3 classes has one text"):
        check_targets(rows, ["0", "1", "2"], "all_triplets", by_class=True)


@pytest.mark.parametrize("prompts", [(), ("sat ", "ran ", "")])
@pytest.mark.parametrize("fewest", [2, 3])
def test_no_negative_equals_the_anchor_or_the_positive(
    tmp_path: Path, fewest: int, prompts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(3)
    made = [tuple(draw.choice(SPELLINGS, draw.integers(3, 6)).tolist()) for _ in range(60)]
    rows = arrange([rows_of(*made)], ())
    tokens = RowTokens.of(rows, tiny_tokenizer(tmp_path), prompts)
    kept, tokens = without_false_negatives(rows, tokens, fewest)
    expected, left = [], 0
    for anchor, positive, *negatives in made:
        known = {folded(anchor), folded(positive)}
        good = [text for text in negatives if folded(text) not in known]
        left += len(negatives) - len(good)
        expected.append((anchor, positive, *good))
    assert f"{left} negatives are left out" in capsys.readouterr().err
    expected = [row for row in expected if len(row) >= fewest]
    assert [kept.row_texts(row) for row in range(len(kept.text_ids))] == expected
    decode = tiny_tokenizer(tmp_path).backend.decode
    before = dict(enumerate(prompts))
    for ids, row in zip(tokens.ids, expected, strict=True):
        starts = [
            (tokens.table.starts[id_], tokens.table.starts[id_ + 1]) for id_ in ids if id_ >= 0
        ]
        read = [decode(tokens.table.ids[start:end].tolist()) for start, end in starts]
        assert read == [folded(before.get(n, "") + text) for n, text in enumerate(row)]
    config = BatchingConfig(size=4)
    for apart in (False, True):  # the plan reads the tokens of the rows that are left
        TextBatches(kept, tokens, config, seed=1, summed=None, no_duplicates=apart).plan(0)


def test_rows_are_refused_if_none_has_another_negative(tmp_path: Path) -> None:
    rows = arrange([rows_of(("sun", "the cat", "The cat"), ("sun", "a dog", "SUN"))], ())
    tokens = RowTokens.of(rows, tiny_tokenizer(tmp_path))
    with pytest.raises(
        TrainingError, match="No row has a usable negative, such as the one at file:1"
    ):
        without_false_negatives(rows, tokens, 3)
    pairs, tokens = without_false_negatives(rows, tokens, 2)
    assert pairs.text_ids.shape == tokens.ids.shape == (2, 2)
