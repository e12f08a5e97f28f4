"""Rows of texts: mixing by weight, keeping equal texts apart, one packed batch."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_search.errors import ModelError, TrainingError
from sbert_search.train.data.examples import Example
from sbert_search.train.data.text_dataset import (
    RowTokens,
    StepTexts,
    TextBatches,
    arrange,
    check_targets,
)
from sbert_search.train.loop.objective import BatchingConfig
from tests.models.tiny import tiny_tokenizer

WORDS = [f"cat{'s' * n} dog" for n in range(60)]


def batches(
    files: list[list[Example]],
    folder: Path,
    *,
    no_duplicates: bool = False,
    weights: tuple[float, ...] = (),
    prompts: tuple[str, ...] = (),
    size: int = 8,
    max_len: int = 80,  # all texts of `WORDS` are different tokens
) -> TextBatches:
    rows = arrange(files, ())
    return TextBatches(
        rows,
        RowTokens.of(rows, tiny_tokenizer(folder, max_len=max_len), prompts),
        BatchingConfig(size=size),
        seed=1,
        summed=None if no_duplicates else "loss",
        no_duplicates=no_duplicates,
        weights=weights,
    )


def test_texts_of_a_row_have_prompts_by_their_place(tmp_path: Path) -> None:
    file = [example("cat", "a dog", "cat"), example("a dog", "the mat")]
    made = batches([file], tmp_path, prompts=("the ", "on "))
    inputs = made.collate(np.array([0, 1]), 0).inputs
    assert isinstance(inputs, StepTexts)
    texts = [
        tiny_tokenizer(tmp_path).backend.decode(ids.tolist())
        for ids in torch.split(inputs.tokens.input_ids, list(inputs.tokens.lengths))
    ]
    read = dict(zip(inputs.slots.tolist(), texts, strict=True))
    assert read == {0: "the cat", 1: "on a dog", 2: "on cat", 3: "the a dog", 4: "on the mat"}


def test_prompts_change_the_fingerprint_and_keep_duplicates_apart(tmp_path: Path) -> None:
    file = [example(word, "cat") for word in WORDS[:8]]
    plain, prompted = batches([file], tmp_path), batches([file], tmp_path, prompts=("on ", ""))
    assert batches([file], tmp_path, prompts=("", "")).fingerprint == plain.fingerprint
    assert prompted.fingerprint != plain.fingerprint
    file = [example("cat", "a dog"), example("the mat", "cat")] * 4  # cat is in both places
    file.append(example("sun", "red"))
    made = batches([file], tmp_path, no_duplicates=True, prompts=("on ", "the "))
    assert [sorted(step)[1:] for step in map(np.ndarray.tolist, made.plan(0))] == [[8]]


def example(*texts: str, group: str = "") -> Example:
    return Example(texts, None, "file:1", group)


def test_a_batch_is_packed_by_length_and_knows_its_places(tmp_path: Path) -> None:
    made = batches([[example("cat", "the cat sat on the mat"), example("dog", "a dog")]], tmp_path)
    batch = made.collate(np.array([1, 0]), 0)
    assert isinstance(batch.inputs, StepTexts)
    tokens = batch.inputs.tokens
    assert list(tokens.lengths) == sorted(tokens.lengths)
    assert batch.counts == {"loss": 2}
    number = torch.arange(4.0).unsqueeze(1)
    by_row = batch.inputs.by_row(number, 2)[..., 0].long()
    lengths = [[tokens.lengths[place] for place in row] for row in by_row.tolist()]
    assert lengths == [[3, 4], [3, 8]]  # of dog, a dog; cat, the cat sat on the mat


def test_rows_of_different_widths_leave_places_empty(tmp_path: Path) -> None:
    files = [[example("cat", "dog", "sun"), example("red", "mat")]]
    made = batches(files, tmp_path, no_duplicates=True)
    batch = made.collate(np.array([0, 1]), 0)
    assert batch.targets is not None
    assert batch.targets.tolist() == [3, 2]
    assert isinstance(batch.inputs, StepTexts)
    by_row = batch.inputs.by_row(torch.ones(5, 1), 2)[..., 0]
    assert by_row.tolist() == [[1, 1, 1], [1, 1, 0]]


def test_weights_say_how_often_an_epoch_has_the_rows_of_a_file(tmp_path: Path) -> None:
    files = [[example(w, "a") for w in WORDS[:20]], [example(w, "b") for w in WORDS[20:30]]]
    made = batches(files, tmp_path, weights=(0.5, 2))
    drawn = Counter(np.concatenate(made.plan(0)).tolist())
    assert sum(drawn[row] for row in range(20)) == 10
    assert [drawn[row] for row in range(20, 30)] == [2] * 10
    assert drawn != Counter(np.concatenate(made.plan(1)).tolist())


def test_a_small_weight_of_a_small_file_draws_one_row(tmp_path: Path) -> None:
    made = batches([[example(w, "a") for w in WORDS[:6]]], tmp_path, weights=(0.05,))
    assert [len(step) for step in made.plan(0)] == [1]


def test_rows_that_share_a_text_or_a_group_never_share_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        [example(WORDS[n % 12], WORDS[20 + n], group="g" if n < 5 else "") for n in range(40)]
        + [example(WORDS[0], WORDS[20])]
    ]
    made = batches(files, tmp_path, no_duplicates=True)
    told = " ".join(capsys.readouterr().err.split())
    assert "1 of 41 rows repeat the texts of another row, such as the one at file:1" in told
    steps = made.plan(0)
    for step in steps:
        texts = [text for row in step for text in made.text_rows.row_texts(row)]
        assert len(texts) == len(set(texts))
        assert sum(made.text_rows.groups[row] >= 0 for row in step) <= 1
    rows = list(chain.from_iterable(step.tolist() for step in steps))
    assert len(rows) == len(set(rows))
    assert len(rows) >= 30


def test_rows_that_are_left_out_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mats = [example(word, "the mat") for word in WORDS[:20]]
    made = batches([[*mats, example("cat", "dog")]], tmp_path, no_duplicates=True)
    assert sorted(map(len, made.plan(0)))[-1] == 2  # one row of the mat, and that of the cat
    told = " ".join(capsys.readouterr().err.split())
    assert "19 of 21 rows are left out of the first epoch: they share" in told
    assert "smaller batching.size" not in told  # two rows are the least
    others = [example(word, word) for word in WORDS[20:40]]
    made = batches([[*mats, *others]], tmp_path, no_duplicates=True)
    told = capsys.readouterr().err
    assert re.search(r"of 40 rows are left .* A smaller batching.size leaves out fewer", told)
    for epoch in (0, 1, 0):
        assert made.n_steps(epoch)
    assert not capsys.readouterr().err  # told once


def test_texts_of_equal_tokens_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spellings = ("the cat", "The Cat", "THE CAT", " the  cat ")
    file = [example(WORDS[n], spellings[n % 4]) for n in range(16)]
    file += [example(WORDS[0].upper(), "a dog"), example("sun", "the " * 80 + "mat")]
    file += [example("red", "the " * 90)]
    steps = batches([file], tmp_path, no_duplicates=True).plan(0)
    cats = {*range(16)}
    assert all(len(cats.intersection(step.tolist())) < 2 for step in steps)
    assert not any({17, 18} <= {*step.tolist()} for step in steps)  # equal up to max_len
    assert not any({0, 16} <= {*step.tolist()} for step in steps)  # equal anchors
    capsys.readouterr()
    batches([[*file, example(WORDS[0].upper(), "THE cat")]], tmp_path, no_duplicates=True)
    assert "1 of 20 rows repeat the texts of another row" in capsys.readouterr().err


def test_texts_can_be_equal_with_one_of_several_prompts(tmp_path: Path) -> None:
    long = "the " * 6
    file = [example(f"{long}cat", "sun"), example(f"{long}dog", f"{long}cat")]
    file += [example("red", f"{long}dog"), example("mat", "a cat")]
    for prompt, count in (("", 2), ("the the the ", 1)):  # the prompt decides what is truncated
        made = batches(
            [file], tmp_path, no_duplicates=True, max_len=10, size=4, prompts=("", prompt)
        )
        kept = [sorted(step.tolist()) for step in made.plan(0)]
        assert max(len({0, 1, 2}.intersection(step)) for step in kept) == count


@pytest.mark.parametrize(
    ("file", "size", "cause"),
    [
        ([(word, "the mat") for word in WORDS[:20]], 8, "the rows share their texts or groups"),
        ([(word, f"a {word}") for word in WORDS[:20]], 1, r"batching\.size is 1 \(in rows\)"),
        ([("cat", "the cat")], 8, "there is one row"),
    ],
)
def test_steps_of_one_row_without_a_negative_are_refused(
    file: list[tuple[str, str]], size: int, cause: str, tmp_path: Path
) -> None:
    rows = [example(*texts) for texts in file]
    with pytest.raises(TrainingError, match=f"Every step would have one row, since {cause}"):
        batches([rows], tmp_path, no_duplicates=True, size=size)
    with_negatives = [example(*texts, "sun red") for texts in file]
    assert batches([with_negatives], tmp_path, no_duplicates=True, size=size).plan(0)


@pytest.mark.parametrize("count", [5, 9, 33])
def test_no_row_is_alone_in_a_step_without_a_negative(tmp_path: Path, count: int) -> None:
    rows = [example(word, f"a {word}") for word in WORDS[:count]]
    made = batches([rows], tmp_path, no_duplicates=True, size=2)
    for epoch in range(3):
        assert sorted(map(len, made.plan(epoch))) == [2] * (count // 2 - 1) + [3]


def test_a_prompt_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the prompt 'the the the the ' and special tokens leave"):
        batches([[example("cat", "dog")]], tmp_path, max_len=6, prompts=("", "the " * 4))


def test_classes_of_one_text_are_refused() -> None:
    single = [Example((word,), str(n), f"file:{n}") for n, word in enumerate(WORDS[:9])]
    labels = sorted(str(n) for n in range(9))
    with pytest.raises(TrainingError, match=r"Each of the 9 classes has one text, such as .*'0'"):
        check_targets(arrange([single], labels), labels, "all_triplets", by_class=True)


def test_one_class_or_one_score_teaches_nothing() -> None:
    same = [Example(("a", "b"), "yes", "file:1"), Example(("c", "d"), "yes", "file:2")]
    with pytest.raises(TrainingError, match=r"2 rows from file:1 to file:2 have the label 'yes'"):
        check_targets(arrange([same], ["yes", "no"]), ["yes", "no"], "softmax")
    scored = [Example(("a", "b"), 0.5, "file:1"), Example(("c", "d"), 0.5, "file:2")]
    with pytest.raises(TrainingError, match=r"have the score 0\.5"):
        check_targets(arrange([scored], []), [], "cosine_mse")


def test_the_fingerprint_follows_texts_and_targets() -> None:
    def of(*examples: Example) -> str:
        return arrange([examples], ()).fingerprint()

    one = Example(("a", "b"), 0.5, "file:1")
    assert of(one) == of(Example(("a", "b"), 0.5, "elsewhere:9"))
    assert of(one) != of(Example(("a", "c"), 0.5, "file:1"))
    assert of(one) != of(Example(("a", "b"), 0.6, "file:1"))
