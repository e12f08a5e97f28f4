"""Hard negatives, by a model whose similarities are known: words that two texts share."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from sbert_search.search.engine import SearchEngine
from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder
from sbert_search.train.data import mining
from sbert_search.train.data.examples import Example
from sbert_search.train.data.mining import MiningConfig, choose_negatives, mine_negatives
from sbert_search.train.recipe import load_recipe
from tests.models.tiny import TOKENS, tiny_bi_encoder, tiny_cross_encoder

PASSAGES = ["the cat", "the cat sat", "the cat sat on", "a dog ran", "far away and then"]
EXAMPLES = [
    Example(("cat sat", "the cat sat"), None, "file:1"),
    Example(("cat sat", "the cat sat on"), None, "file:2"),
    Example(("dog ran", "a dog ran"), None, "file:3"),
    Example(("then", "far away and then"), None, "file:4"),
    Example(("cat", "the cat"), None, "file:5"),
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose vectors are little more than the mean of those of the words."""
    made = tiny_bi_encoder(tmp_path / "tokens")
    with torch.no_grad():
        words = made.encoder.embeddings.word.weight
        words.copy_(torch.randn(len(TOKENS), 16, generator=torch.Generator().manual_seed(1)))
    made.save(tmp_path / "model")
    return tmp_path / "model"


def mine_rows(
    rows: list[Example], config: MiningConfig, model: Path, folder: Path, **more: Any
) -> list[Example]:
    tokenizer = load_tokenizer(read_folder(model))
    return mine_negatives(
        rows, config, str(model), folder, device="cpu", tokenizer=tokenizer, **more
    )


def mine(model: Path, folder: Path, **settings: Any) -> list[tuple[str, ...]]:
    config = MiningConfig(**{"negatives": 2, "margin": -10.0, **settings})
    return [example.texts[2:] for example in mine_rows(EXAMPLES, config, model, folder)]


@pytest.mark.thorough
def test_negatives_are_found_and_never_a_positive_of_the_anchor(
    model: Path, tmp_path: Path
) -> None:
    found = mine(model, tmp_path / "mined", negatives=4)
    assert set(found[0]) == set(PASSAGES) - {"the cat sat", "the cat sat on"}
    assert found[0] == found[1]
    assert set(found[2]) == set(PASSAGES) - {"a dog ran"}


@pytest.mark.thorough
def test_texts_of_the_group_and_positives_of_other_files_are_no_negatives(
    model: Path, tmp_path: Path
) -> None:
    rows = [
        Example((a, b), None, "file:1", "ours") for a, b in pairwise([*PASSAGES[:3], "the cat"])
    ]
    rows += [replace(row, group="" if n % 2 else "theirs") for n, row in enumerate(EXAMPLES[2:4])]
    config = MiningConfig(negatives=4, margin=-10.0)
    mined = mine_rows(rows, config, model, tmp_path)
    assert {*mined[0].texts[2:]} == {"a dog ran", "far away and then"}
    elsewhere = [Example(("the cat", "a dog ran"), None, "other:1")]
    mined = mine_rows(rows, config, model, tmp_path, others=elsewhere)
    assert mined[0].texts[2:] == ("far away and then",)


def test_a_row_never_gets_a_negative_that_it_has(model: Path, tmp_path: Path) -> None:
    every = mine(model, tmp_path / "mined", negatives=4)[2]
    row = Example(("dog ran", "a dog ran", every[0]), None, "file:1")
    config = MiningConfig(negatives=2, margin=-10.0)
    rows = [row, Example(("dog ran", "a dog ran"), None, "file:2"), *EXAMPLES[:2], *EXAMPLES[3:]]
    mined = mine_rows(rows, config, model, tmp_path / "again")
    assert mined[0].texts[3:] == every[1:3]
    assert mined[1].texts[2:] == every[:2]


def test_ranks_and_margin_bound_the_window(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = mine(model, tmp_path / "mined", negatives=4)[2]
    assert mine(model, tmp_path / "mined", first=2, last=3)[2] == every[1:3]
    drawn = mine(model, tmp_path / "mined", margin=10.0)
    told = " ".join(capsys.readouterr().err.split())
    assert "5 of 5 rows got fewer than 2 hard negatives, 5 of them none. They are filled" in told
    mine(model, tmp_path / "mined", margin=10.0, negatives=1)
    told = " ".join(capsys.readouterr().err.split())
    assert "5 of 5 rows got no hard negative. They are filled" in told
    for example, texts in zip(EXAMPLES, drawn, strict=True):
        own = {e.texts[1] for e in EXAMPLES if e.texts[0] == example.texts[0]}
        assert len({*texts} - own) == 2


def test_an_anchor_that_is_a_passage_has_no_rank() -> None:
    hits = [("a", 0.9), ("b", 0.8), ("c", 0.7), ("d", 0.6), ("e", 0.5)]
    config = MiningConfig(negatives=2, first=2, last=3, margin=0.0)
    assert choose_negatives("a", ("b",), hits, (), config, str) == ["d", "e"]
    assert choose_negatives("a", ("b", "far away"), hits, (), config, str) == []


def test_random_passages_are_seeded_and_fill_up_every_row(model: Path, tmp_path: Path) -> None:
    rows = [Example((f"cat {word}", word), None, word) for word in TOKENS[10:]]
    config = MiningConfig(negatives=3, margin=10.0)
    drawn = [
        [row.texts[2:] for row in mine_rows(rows, config, model, tmp_path, seed=seed)]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {len(texts) for texts in drawn[0]} == {3}
    assert len({*drawn[0]}) > len(rows) / 2
    half = mine_rows(rows, replace(config, margin=-0.2), model, tmp_path / "half", seed=1)
    for row in half:
        assert len({*row.texts[1:]}) == 4


def test_a_row_whose_passages_are_all_positives_stays_without_a_negative(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Example(("dog", text), None, text) for text in PASSAGES[:3]]
    config = MiningConfig(negatives=2)
    mined = mine_rows(rows, config, model, tmp_path / "all")
    assert [row.texts for row in mined] == [row.texts for row in rows]
    told = " ".join(capsys.readouterr().err.split())
    assert "3 rows have none, since all passages are their positives" in told
    rows.append(Example(("cat", PASSAGES[0]), None, "cat"))
    mined = mine_rows(rows, config, model, tmp_path / "most")
    assert [row.texts[2:] for row in mined[:3]] == [()] * 3
    assert {*mined[3].texts[2:]} == {*PASSAGES[1:3]}


def test_texts_of_equal_tokens_are_no_negatives_of_equal_anchors(
    model: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    texts = ["the cat", "THE Cat", "the cat ", "A dog", "a dog"]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = [Example(("cat sat", "The cat"), None, "1"), Example(("Cat  sat", "sun red"), None, "2")]
    rows.append(Example(("far", "the mat"), None, "3"))
    for margin in (-10.0, 10.0):  # all negatives are mined, and all are random
        config = MiningConfig(negatives=4, margin=margin, corpus=corpus)
        mined = mine_rows(rows, config, model, tmp_path / str(margin))
        for row in mined[:2]:
            assert not {text.lower().strip() for text in row.texts[2:]} & {"the cat", "sun red"}
        spelled = [text.lower().strip() for row in mined for text in row.texts[2:]]
        assert len(spelled) == sum(len({t.lower().strip() for t in r.texts[2:]}) for r in mined)
    assert "the mat" in mined[0].texts


def test_queries_are_embedded_on_the_device_of_the_training(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[object] = []

    def opened(index: Index, *, device: str) -> SearchEngine:
        devices.append(device)
        return SearchEngine(index, device=device)

    monkeypatch.setattr(mining, "SearchEngine", opened)
    mine(model, tmp_path / "mined")
    assert devices == ["cpu"]


def test_a_stopped_run_goes_on_after_its_rows_have_moved(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passages are in the same order, and the first block has another anchor."""

    def stops(*given: Any) -> Any:
        if "cat" not in given[0]:
            raise KeyboardInterrupt
        return genuine(*given)

    monkeypatch.setattr(mining, "_AT_ONCE", 1)
    genuine = mining._mine
    anchors = [Example((anchor, "the cat"), None, anchor) for anchor in ("cat", "sat", "dog")]
    config = MiningConfig(negatives=1, margin=-10.0)
    monkeypatch.setattr(mining, "_mine", stops)
    with pytest.raises(KeyboardInterrupt):
        mine_rows(anchors + EXAMPLES[2:4], config, model, tmp_path)
    monkeypatch.setattr(mining, "_mine", genuine)
    rows = anchors[::-1] + EXAMPLES[2:4]
    mined = mine_rows(rows, config, model, tmp_path)
    assert [len(example.texts) for example in mined] == [3] * 5


def test_what_was_mined_is_not_computed_again_and_a_stopped_run_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "_AT_ONCE", 2)
    expected = mine(model, tmp_path / "whole")
    calls: list[int] = []
    genuine = mining._mine

    def stops(*given: Any) -> Any:
        calls.append(len(given[0]))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return genuine(*given)

    monkeypatch.setattr(mining, "_mine", stops)
    with pytest.raises(KeyboardInterrupt):
        mine(model, tmp_path / "cut")
    assert mine(model, tmp_path / "cut") == expected
    assert calls == [2, 2, 2]  # the first block is done once
    assert mine(model, tmp_path / "cut") == expected
    assert len(calls) == 3


def test_a_cross_encoder_must_agree(model: Path, tmp_path: Path) -> None:
    from sbert_search.search.rerankers import Reranker

    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "reranker")
    reranker = Reranker(tmp_path / "reranker")
    found = mine(model, tmp_path / "mined", negatives=4, reranker=str(tmp_path / "reranker"))
    assert found != mine(model, tmp_path / "mined", negatives=4)
    positive = float(reranker.predict([("dog ran", "a dog ran")])[0])
    scores = reranker.predict([("dog ran", text) for text in found[2]] or [("a", "a")])
    assert not found[2] or float(np.max(scores)) < positive


def test_a_reranker_with_several_labels_is_refused_before_the_work(
    model: Path, tmp_path: Path
) -> None:
    tiny_cross_encoder(tmp_path / "tokens", labels=("no", "yes")).save(tmp_path / "reranker")
    with pytest.raises(ConfigError, match=r"mining\.reranker is .*, which has 2 labels"):
        mine(model, tmp_path / "mined", reranker=str(tmp_path / "reranker"))
    assert not (tmp_path / "mined").exists()


def overwrite(model: Path, seed: int) -> None:
    """Give a model folder other weights under the same path."""
    path = model / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    chance = torch.Generator().manual_seed(seed)
    changed = {
        name: torch.randn(tensor.shape, generator=chance) if tensor.ndim == 2 else tensor
        for name, tensor in tensors.items()
    }
    safetensors.torch.save_file(changed, path, {"format": "pt"})


@pytest.mark.thorough
def test_other_weights_under_the_same_path_are_mined_again(model: Path, tmp_path: Path) -> None:
    before = mine(model, tmp_path / "mined", negatives=4)
    overwrite(model, 7)
    expected = mine(model, tmp_path / "fresh", negatives=4)
    assert mine(model, tmp_path / "mined", negatives=4) == expected != before


def test_other_weights_of_the_reranker_are_used(model: Path, tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "reranker")
    settings = {"negatives": 4, "reranker": str(tmp_path / "reranker")}
    before = mine(model, tmp_path / "mined", **settings)
    overwrite(tmp_path / "reranker", 7)
    expected = mine(model, tmp_path / "fresh", **settings)
    assert mine(model, tmp_path / "mined", **settings) == expected != before


def test_a_corpus_is_searched_too(model: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"text": "dog ran dog ran"}) + "\n", encoding="utf-8")
    assert "dog ran dog ran" in mine(model, tmp_path / "mined", negatives=4, corpus=corpus)[2]


def test_a_recipe_mines_before_it_trains(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.jsonl"
    rows = [{"query": e.texts[0], "passage": e.texts[1]} for e in EXAMPLES]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = [f"model={model}", f"data.train={data}", "device=cpu", "budget.steps=2"]
    settings += ["mining.margin=-10", "batching.size=4"]
    recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "query-passage", settings)
    train_bi_encoder(recipe, tmp_path / "run")
    assert list((tmp_path / "run" / "mining").glob("*/negatives-000000000.json"))


def test_settings_that_cannot_be(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use first <= last"):
        MiningConfig(first=5, last=4)
    settings = [f"model={model}", "data.train=x.jsonl", "mining.negatives=2"]
    with pytest.raises(ConfigError, match=r"mining\.negatives is 2, but the loss cosine_mse"):
        load_recipe(BiEncoderRecipe, "bi-encoder", "stsb", settings)
