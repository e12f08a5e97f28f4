"""Fit the temperature of a classifier or a cross-encoder to labelled texts, and store it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sbert_search.base.progress import note
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads.calibration import (
    COLDEST,
    HOTTEST,
    calibration_error,
    fit_temperature,
)
from sbert_search.heads.predictor import Predictor, Text
from sbert_search.heads.training_rows import targets_of
from sbert_search.models.heads import activation_path
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.loading.native_support import pair_activation
from sbert_search.models.sequence_classifier import PROBLEM_TYPES, SequenceClassifier
from sbert_search.models.side_file import read_side_file, write_side_file
from sbert_search.text.labelled.pairs import MissingColumnError
from sbert_search.text.labelled.records import LabelKind
from sbert_search.text.labelled.texts import read_labelled_texts

_RELEVANCE = ("0", "1")  # labels of pairs (unrelated, related) for a model with a single score


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted temperature of a model, and the calibration error before and with it."""

    texts: int  # number of labelled texts or pairs
    temperature: float  # divides the logits of the model
    error_before: float  # with the temperature that the model had, 1 before the first calibration
    error: float  # with the fitted temperature, on the same texts


def calibrate(model: Path, source: Path, *, device: str = "auto") -> Calibration:
    """Fit the temperature of a model to labelled texts, and store it in the model's folder.

    The most probable class of a text does not change, and neither does the order in which a
    cross-encoder with a single score ranks pairs, whose labels are 1 (related) and 0. A model that
    gives several labels can give a text other labels than before, unless its threshold is 0.5. Take
    texts that the model was not trained on.
    """
    if not model.is_dir():
        raise ConfigError(f"{model} is no folder of a model; the temperature is stored there.")
    predictor = Predictor(model, device=device, precision="fp32")
    head = predictor.model
    if not isinstance(head, SequenceClassifier):
        raise ConfigError(f"{model} is a model for {predictor.task}; calibrate a classifier.")
    single = head.kind == "number"
    if single:
        _require_probability(model)
    kind: LabelKind = "several" if single else head.kind
    labels = _RELEVANCE if single else None
    try:
        rows = read_labelled_texts(source, kind="class" if single else kind, labels=labels)
    except MissingColumnError as error:
        # The whole message names an option for columns, which calibration does not have.
        raise CorpusError(f"{error.problem}.") from None
    texts: list[Text] = [row.text if row.text2 is None else (row.text, row.text2) for row in rows]
    logits = predictor.logits(texts)
    gold: NDArray[np.generic] = (
        np.array([[float(row.label == "1")] for row in rows]) if single else targets_of(head, rows)
    )
    temperature = fit_temperature(logits, gold, kind)
    before = read_side_file(model)
    if bound := next((b for b in (COLDEST, HOTTEST) if math.isclose(temperature, b)), None):
        note(
            f"The temperature is {bound:g}, the {'lowest' if bound == COLDEST else 'highest'} that "
            f"is tried, so these {len(rows):,} texts do not determine it. Take more, of which "
            "the model gets most right and some wrong."
        )
    write_side_file(model, replace(before, temperature=temperature))
    return Calibration(
        len(rows),
        temperature,
        *(
            calibration_error(logits, gold, kind, each)
            for each in (before.temperature, temperature)
        ),
    )


def _require_probability(model: Path) -> None:
    """Refuse a model that was trained on numbers, or a cross-encoder without a sigmoid."""
    folder = read_folder(model)
    activation = pair_activation(folder)
    if activation is None and folder.transformer.get("problem_type") == PROBLEM_TYPES["number"]:
        raise ConfigError(
            f"{model} predicts numbers, which are no probabilities; calibrate a classifier or a "
            "cross-encoder."
        )
    if activation not in (None, activation_path(nn.Sigmoid())):
        raise ConfigError(
            f"The activation of {model} is {activation}, so its scores are no probabilities. "
            "Calibrate a cross-encoder whose activation is a sigmoid, such as one of train "
            "cross-encoder with loss=bce."
        )
