"""Prediction with task heads against transformers' pipelines; `bench_heads.py` calls it.

Both predict on the CPU with the same models, all-MiniLM-L6-v2 with new heads of random weights, for
the same texts in their natural lengths. The pipeline gets batches of 32 texts; this package uses
its default batch size. The peer computes in fp32. `agreement` is the share of texts to which both
give the same label; the accuracy of random heads would mean nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import Figure, Results, compare, rate, repeats_of
from texts import data_folder, sentences

from sbert_search.base.device import Precision
from sbert_search.heads.labelled_spans import read_questions, read_tagged_tokens
from sbert_search.heads.predictor import Predictor
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import QuestionAnswerer, TokenClassifier
from sbert_search.text.labelled.texts import read_labelled_texts

BATCH, MAX_LEN = 32, 128
STRIDE = 55  # tokens that windows share: about half of a window, as in this package
TAGS = ("O", "B-person", "I-person", "B-location", "I-location")
PRECISIONS: tuple[Precision, ...] = ("fp32", "auto")

Texts = Sequence[str]
Questions = Sequence[tuple[str, str]]


def prediction_figures(options: argparse.Namespace, results: Results) -> None:
    """Compare classes, entities and answers, in fp32 and in the precision that we choose."""
    torch.manual_seed(0)
    count = 256 if options.quick else 2048
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder), resolve_model().path
        SequenceClassifier.start(start, labels=("0", "1"), max_len=MAX_LEN).save(path / "classify")
        TokenClassifier.start(start, labels=TAGS, max_len=MAX_LEN).save(path / "tag")
        QuestionAnswerer.start(start, labels=("LABEL_0", "LABEL_1"), max_len=MAX_LEN).save(
            path / "qa"
        )
        repeats = repeats_of(options)
        for task, inputs in (("classify", classified(count)), ("tag", tagged(count))):
            _compare(task, inputs, path / task, results, repeats)
        _compare_answers(asked(count // 8), path / "qa", results, repeats)


def classified(count: int) -> list[str]:
    """Sentences of SST-2, or others without the data."""
    data = data_folder()
    if data is None:
        return sentences(count)[1]
    return [row.text for row in read_labelled_texts(data / "sst2" / "train.jsonl.gz")[:count]]


def tagged(count: int) -> list[str]:
    """Sentences of WNUT-17, or others without the data."""
    data = data_folder()
    if data is None:
        return sentences(count)[1]
    read = read_tagged_tokens(data / "wnut17" / "train.jsonl.gz")[:count]
    return [" ".join(sentence.tokens) for sentence in read]


def asked(count: int) -> list[tuple[str, str]]:
    """Questions of XQuAD with their contexts; without the data, sentences as both."""
    data = data_folder()
    if data is None:
        return [(text, text) for text in sentences(count)[1]]
    read = read_questions(data / "squad" / "xquad_en.jsonl.gz")[:count]
    return [(question.text, question.context) for question in read]


def _compare(task: str, texts: Texts, model: Path, results: Results, repeats: int) -> None:
    theirs = _pipeline(task, model)
    for precision in PRECISIONS:
        predictor = Predictor(model, device="cpu", precision=precision)
        name = f"predict_{task}_{_named(precision, predictor)}"
        _measure(
            name,
            len(texts),
            partial(predictor.predict, texts),
            partial(theirs, texts),
            results,
            repeats,
        )
        if task == "classify":
            found = [own.label for own in predictor.classify(texts)]
            same = [a == b["label"] for a, b in zip(found, theirs(texts), strict=True)]
            results.add(f"{name}_agreement", Figure(sum(same) / len(same), "share"))


def _compare_answers(questions: Questions, model: Path, results: Results, repeats: int) -> None:
    """Compare with forward passes of transformers, whose version 5 has no pipeline for answers."""
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    reference = AutoModelForQuestionAnswering.from_pretrained(model).eval()

    @torch.inference_mode()
    def theirs() -> None:
        """Compute the logits of all windows, in batches; the peer chooses no spans."""
        for start in range(0, len(questions), BATCH):
            part = questions[start : start + BATCH]
            batch = tokenizer(
                [question for question, _ in part],
                [text for _, text in part],
                truncation="only_second",
                max_length=MAX_LEN,
                stride=STRIDE,
                return_overflowing_tokens=True,
                padding=True,
                return_tensors="pt",
            )
            batch.pop("overflow_to_sample_mapping")
            reference(**batch)

    for precision in PRECISIONS:
        predictor = Predictor(model, device="cpu", precision=precision)
        name = f"predict_qa_{_named(precision, predictor)}"
        answer = partial(predictor.answer, questions)
        _measure(name, len(questions), answer, theirs, results, repeats)


def _measure(
    name: str,
    count: int,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    results: Results,
    repeats: int,
) -> None:
    figure = compare(
        lambda: rate(count, ours), lambda: rate(count, theirs), unit="texts/s", repeats=repeats
    )
    results.add(name, figure)


def _pipeline(task: str, model: Path) -> Callable[[Texts], list[Any]]:
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(model, model_max_length=MAX_LEN)
    if task == "classify":
        classify = pipeline(
            "text-classification", model=str(model), tokenizer=tokenizer, device="cpu"
        )
        return lambda texts: list(classify(list(texts), batch_size=BATCH, truncation=True))
    tag = pipeline(
        "token-classification",
        model=str(model),
        tokenizer=tokenizer,
        device="cpu",
        aggregation_strategy="first",
    )
    return lambda texts: list(tag(list(texts), batch_size=BATCH))


def _named(precision: str, predictor: Predictor) -> str:
    """Name the precision in which a predictor computes; "auto" chooses one."""
    return precision if precision != "auto" else f"auto_{predictor.opened.precision}"
