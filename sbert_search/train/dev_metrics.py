"""Metrics of a sentence encoder on dev data: Spearman correlation of scores, or an accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.evaluate.metrics.correlation import GoldScores
from sbert_search.models.static_model import SentenceModel
from sbert_search.text.fields import find_field
from sbert_search.text.labelled.pairs import COLUMNS
from sbert_search.text.sources import classify, field_names
from sbert_search.train.bi_encoder_losses import BINARY, LossConfig, Siamese, pair_logits
from sbert_search.train.data.examples import DataConfig, Example, Form, TargetKind, read_examples
from sbert_search.train.data.text_dataset import RowTokens, TextRows, arrange
from sbert_search.train.data.token_table import outputs_of
from sbert_search.train.loop.schedule import DevMetrics

Metric = Callable[[Siamese, NDArray[np.float32]], float]
"""Function of the model and the embeddings of the dev rows, (rows, texts of a row, dim)."""


def dev_evaluator(
    path: Path,
    data: DataConfig,
    loss: LossConfig,
    classes: tuple[str, ...],
    model: SentenceModel,
    prompts: Sequence[str] = (),
    teach: Callable[[TextRows], TextRows] | None = None,
) -> DevMetrics:
    """Read the dev rows and choose the first metric of this list that fits the rows.

    - ``spearman``, if the file has scores (whatever ``data.form`` is): correlation of the cosines;
    - ``cosine``, if the loss learns embeddings, and ``data.form`` is "texts": mean cosine of the
      embeddings and the teacher's, which ``teach`` sets as targets;
    - ``accuracy``, if the loss has a classifier: share of pairs with the right label;
    - ``triplets``, if ``data.form`` is "triplets" or "sections": share of anchors whose Euclidean
      distance to their positive is smaller than that to their first negative;
    - ``found``: share of anchors for which a search in the positives of all rows ranks one of the
      anchor's own first, those of all rows with the same anchor or group. Texts equal to the anchor
      are left out. Different texts that a model cannot tell apart share the first rank: if k texts
      have the best cosine or the best vector, each of them counts 1/k. For the losses of `BINARY`,
      only the similar pairs of the file are used.

    The metric is NaN if an embedding or a logit is not finite. ``prompts`` are as in `RowTokens`.
    """
    task = _task(path, data, loss)
    labels = classes if task.target == "label" else ()
    reading = replace(data, form=task.form, limit=None, labels=labels, split=data.dev_split)
    examples = read_examples(path, reading, task.target)
    if task.name == "found":
        examples = _positive_pairs(path, examples, data, labels)
    rows = arrange([examples], labels)
    tokens = RowTokens.of(rows, model.tokenizer, prompts)
    if task.name == "cosine":
        assert teach is not None
        rows = teach(rows)
    metric = task.make_metric(rows)

    def evaluate(module: nn.Module) -> Mapping[str, float]:
        assert isinstance(module, Siamese)
        vectors = outputs_of(module.bi_encoder, tokens.table, module.bi_encoder.dim)
        value = metric(module, vectors[tokens.ids]) if np.isfinite(vectors).all() else math.nan
        return {task.name: value}

    checksum = rows.fingerprint(tokens.prompts)
    return DevMetrics((task.name,), evaluate, checksum, rows=len(examples))


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    form: Form
    target: TargetKind
    make_metric: Callable[[TextRows], Metric]


def _task(path: Path, data: DataConfig, loss: LossConfig) -> _Task:
    fields = field_names(classify(path)) or []
    if (data.columns.score or find_field(COLUMNS["score"], fields)) in fields:
        return _Task("spearman", "pairs", "score", _spearman)
    if loss.kind.teacher == "bi-encoder" and data.form == "texts":
        return _Task("cosine", "texts", "nothing", _teacher_cosine)
    if loss.name == "softmax":
        return _Task("accuracy", "pairs", "label", lambda rows: _accuracy(rows, loss))
    if data.form in ("triplets", "sections"):
        return _Task("triplets", data.form, "nothing", lambda rows: _triplets)
    target: TargetKind = "label" if loss.name in BINARY else "nothing"
    return _Task("found", data.form, target, _found)


def _positive_pairs(
    path: Path, examples: Sequence[Example], data: DataConfig, labels: tuple[str, ...]
) -> list[Example]:
    """Keep the rows whose first two texts differ; if there are labels, keep only similar pairs."""
    different = [e for e in examples if len(e.texts) > 1 and e.texts[0] != e.texts[1]]
    if not different:
        raise ConfigError(
            f"{path}: with data.form = {data.form!r}, no row has two different texts, so no dev "
            "metric fits. Set data.dev to a file of pairs with scores, or leave data.dev out."
        )
    similar = [e for e in different if not labels or e.target == labels[1]]
    if not similar:
        raise CorpusError(
            f"{path}: no pair has the label {labels[1]!r} of similar pairs; the dev metric needs "
            "such pairs."
        )
    return similar


def _spearman(rows: TextRows) -> Metric:
    assert rows.targets is not None
    gold = GoldScores(rows.targets, rows.sources)
    return lambda model, e: gold.correlations(_cosines(e[:, 0], e[:, 1]))["spearman"]


def _teacher_cosine(rows: TextRows) -> Metric:
    targets = np.asarray(rows.targets, np.float32)
    return lambda model, e: float(_cosines(e[:, 0], targets).mean())


def _accuracy(rows: TextRows, loss: LossConfig) -> Metric:
    assert rows.targets is not None
    gold = rows.targets

    def share(model: Siamese, embeddings: NDArray[np.float32]) -> float:
        device = next(model.parameters()).device
        logits: Tensor = pair_logits(model, torch.from_numpy(embeddings).to(device), loss)
        if not logits.isfinite().all():
            return math.nan
        return float((logits.argmax(dim=1).cpu().numpy() == gold).mean())

    return share


def _triplets(model: Siamese, e: NDArray[np.float32]) -> float:
    positive, negative = (np.linalg.norm(e[:, 0] - e[:, n], axis=1) for n in (1, 2))
    return float((positive < negative).mean())


def _found(rows: TextRows) -> Metric:
    anchors, groups = rows.text_ids[:, 0], rows.groups
    texts, first, of_row = np.unique(rows.text_ids[:, 1], return_index=True, return_inverse=True)

    def share(model: Siamese, e: NDArray[np.float32]) -> float:
        queries, positives = _unit(e[:, 0]), _unit(e[first, 1])
        # Equal vectors have equal numbers here. Their cosines can differ by a rounding error.
        alike = np.unique(positives + 0.0, axis=0, return_inverse=True)[1].ravel()
        found = 0.0
        for query, anchor, group in zip(queries, anchors, groups, strict=True):
            own = of_row[(anchors == anchor) | ((groups == group) & (group >= 0))]
            cosines = np.where(texts == anchor, -np.inf, positives @ query)
            best = cosines.argmax()
            tied = ((cosines == cosines[best]) | (alike == alike[best])) & (texts != anchor)
            found += float(tied[np.unique(own)].sum() / tied.sum())
        return found / len(anchors)

    return share


def _cosines(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float32]:
    cosines: NDArray[np.float32] = np.einsum("ij,ij->i", _unit(x), _unit(y))
    return cosines


def _unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    scaled: NDArray[np.float32] = x / np.linalg.norm(x, axis=-1, keepdims=True).clip(min=1e-12)
    return scaled
