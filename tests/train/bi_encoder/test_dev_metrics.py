"""Dev metrics of a sentence encoder, on vectors that are given by their angles."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.train import dev_metrics
from sbert_search.train.bi_encoder_losses import LossConfig, LossName, Siamese
from sbert_search.train.data.examples import DataConfig, Form
from sbert_search.train.data.token_table import TokenTable
from tests.models.tiny import tiny_bi_encoder


def found(
    folder: Path,
    rows: list[dict[str, object]],
    angles: Mapping[str, float],
    monkeypatch: pytest.MonkeyPatch,
    form: Form = "pairs",
    loss: LossName = "mnrl",
) -> float:
    """The dev metric, if each text has a vector of this angle.

    The vector of a text without an angle is zero; that of one whose angle is NaN is NaN.
    """

    def embed(model: object, texts: list[str], dim: int) -> np.ndarray:
        radians = np.radians([angles.get(text, 0) for text in texts])
        vectors = np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)
        vectors[[text not in angles for text in texts]] = 0
        return vectors

    monkeypatch.setattr(TokenTable, "of", lambda texts, tokenizer, ranks: texts)
    monkeypatch.setattr(dev_metrics, "outputs_of", embed)
    path = folder / "dev.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = tiny_bi_encoder(folder / "tokens")
    data = DataConfig(train=path, form=form)
    evaluate = dev_metrics.dev_evaluator(path, data, LossConfig(name=loss), ("0", "1"), model)
    (value,) = evaluate(Siamese(model, None)).values()
    return value


def pair(first: str, second: str, **more: object) -> dict[str, object]:
    return {"sentence1": first, "sentence2": second, **more}


def test_an_anchor_of_a_group_finds_another_text_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = [{"texts": ["a", "b", "c"]}, {"texts": ["d", "e", "f"]}]
    angles = {"a": 0.0, "b": 10.0, "c": 20.0, "d": 90.0, "e": 100.0, "f": 16.0}
    # a finds b, d finds e, e finds d; b and c find f, and f finds c.
    assert found(tmp_path, rows, angles, monkeypatch, form="groups") == 3 / 6


def test_all_positives_of_an_anchor_count_and_texts_equal_to_it_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [pair("a", "b"), pair("a", "c"), pair("c", "d"), pair("d", "d")]
    # Both rows of a find b; c finds b, and not itself; the row of equal texts is left out.
    assert found(tmp_path, rows, {"a": 0, "b": 10, "c": 20, "d": 90}, monkeypatch) == 2 / 3


def test_texts_with_equal_vectors_share_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [pair("a", "b"), pair("c", "B"), pair("d", "e"), pair("f", "e")]
    angles = {"a": 0.0, "b": 10.0, "B": 10.0, "c": 20.0, "d": 90.0, "e": 90.0, "f": 95.0}
    # b and B share the first rank for a and c; e is one text, although two rows have it.
    assert found(tmp_path, rows, angles, monkeypatch) == 3 / 4


@pytest.mark.parametrize("side", ["both", "anchors", "positives"])
@pytest.mark.parametrize("value", ["constant", "zero", "nan"])
def test_a_model_that_gives_texts_one_vector_has_the_metric_of_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, value: str
) -> None:
    n = 50
    rows = [pair(f"a{i}", f"p{i}") for i in range(n)]
    angles = {f"{kind}{i}": 360.0 * i / n + (kind == "p") for kind in "ap" for i in range(n)}
    assert found(tmp_path, rows, angles, monkeypatch) == 1
    for text in list(angles):
        if side == "both" or text.startswith(side[0]):
            angles[text] = math.nan if value == "nan" else 45.0
            if value == "zero":
                del angles[text]
    share = found(tmp_path, rows, angles, monkeypatch)
    assert math.isnan(share) if value == "nan" else share == pytest.approx(1 / n)


def test_triplets_of_equal_vectors_are_not_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = [
        {"anchor": f"a{n}", "positive": f"p{n}", "negative": f"n{n}"} for n in range(5)
    ]
    texts = [str(text) for row in rows for text in row.values()]
    for angles, share in ((dict.fromkeys(texts, 10.0), 0.0), ({}, 0.0)):
        assert found(tmp_path, rows, angles, monkeypatch, form="triplets") == share
    one = dict.fromkeys(texts, 10.0) | {"a0": math.nan}
    assert math.isnan(found(tmp_path, rows, one, monkeypatch, form="triplets"))


def test_dissimilar_pairs_are_no_positives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [pair("a", "b", label=1), pair("c", "d", label=0), pair("e", "f", label=1)]
    angles = {"a": 0.0, "b": 50.0, "c": 200.0, "d": 5.0, "e": 90.0, "f": 60.0}
    assert found(tmp_path, rows, angles, monkeypatch, loss="contrastive") == 1
    with pytest.raises(CorpusError, match="no pair has the label '1' of similar pairs"):
        found(tmp_path, rows[1:2], angles, monkeypatch, loss="online_contrastive")


@pytest.mark.parametrize(
    ("form", "loss"),
    [("texts", "mnrl"), ("classes", "all_triplets"), ("classes", "embedding_mse")],
)
def test_rows_of_one_text_have_no_dev_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form, loss: LossName
) -> None:
    rows: list[dict[str, object]] = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    with pytest.raises(ConfigError, match=f"'{form}', no row has two .* pairs with scores"):
        found(tmp_path, rows, {}, monkeypatch, form=form, loss=loss)


@pytest.mark.parametrize(
    ("form", "loss", "row"),
    [
        ("pairs", "mnrl", pair("a", "b")),
        ("triplets", "triplet", {"anchor": "a", "positive": "b", "negative": "c"}),
        ("pairs", "softmax", pair("a", "b", label="0")),
        ("pairs", "cosine_mse", pair("a", "b", score=1.0)),
    ],
)
def test_vectors_that_are_not_finite_have_no_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Form, loss: LossName, row: object
) -> None:
    other = {**pair("c", "d"), "score": 2.0} if loss == "cosine_mse" else row
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (row, other)), encoding="utf-8")
    model = tiny_bi_encoder(tmp_path / "tokens")
    data, config = DataConfig(train=path, form=form), LossConfig(name=loss)
    evaluate = dev_metrics.dev_evaluator(path, data, config, ("0", "1"), model)
    head = nn.Linear(3 * model.dim, 2) if loss == "softmax" else None
    siamese = Siamese(model.eval(), head)
    assert np.isfinite([*evaluate(siamese).values()]).all()
    with torch.no_grad():
        model.encoder.embeddings.word.weight[-5:] = torch.nan
        model.encoder.embeddings.norm.bias[0] = torch.nan
    assert np.isnan([*evaluate(siamese).values()]).all()
