"""Task heads against transformers: logits, losses, gradients, twenty steps, folders both ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from sbert_search.errors import ModelError
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.logit_losses import (
    IGNORED,
    class_cross_entropy,
    several_classes_cross_entropy,
    span_cross_entropy,
    squared_error,
    token_cross_entropy,
)
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.token_classifier import PerTokenModel, QuestionAnswerer, TokenClassifier
from sbert_search.train.loop.optim import OptimConfig, make_optimizer
from tests.parity.family import assert_close, assert_same_parameters, mask_of
from tests.parity.folders import bare

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = (
    *("bert", "roberta", "xlm-roberta", "mpnet", "modernbert"),
    *("albert", "distilbert", "electra", "deberta"),
)
EQUAL, ODD = (9, 9, 9, 9), (7, 1, 19, 7, 3, 19)
LABELS = ["O", "B-LOC", "I-LOC"]
Model = SequenceClassifier | PerTokenModel


@dataclass(frozen=True)
class Task:
    """A head: our class, the class in transformers, its settings, its targets and our loss."""

    ours: type[Model]
    theirs: str
    settings: dict[str, Any]
    targets: Callable[[PackedTokens], dict[str, Tensor]]
    loss: Callable[[Tensor, PackedTokens, dict[str, Tensor]], Tensor]


def draw(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(5))


def token_labels(tokens: PackedTokens) -> dict[str, Tensor]:
    labels = draw(3, tokens.total)
    labels[::3] = IGNORED
    return {"labels": labels}


def span_loss(logits: Tensor, tokens: PackedTokens, goal: dict[str, Tensor]) -> Tensor:
    padded = tokens.pad(logits, -torch.inf)
    losses = span_cross_entropy(
        padded[..., 0], padded[..., 1], goal["start_positions"], goal["end_positions"]
    )
    return losses.mean()


def token_loss(logits: Tensor, tokens: PackedTokens, goal: dict[str, Tensor]) -> Tensor:
    total, count = token_cross_entropy(logits, goal["labels"])
    return total / count


def named(labels: list[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}


SEQUENCE = "SequenceClassification"
TASKS = {
    "class": Task(
        SequenceClassifier,
        SEQUENCE,
        named(["no", "maybe", "yes"]),
        lambda tokens: {"labels": draw(3, len(tokens.lengths))},
        lambda logits, tokens, goal: class_cross_entropy(logits, goal["labels"]).mean(),
    ),
    "several": Task(
        SequenceClassifier,
        SEQUENCE,
        named(["a", "b"]) | {"problem_type": "multi_label_classification"},
        lambda tokens: {"labels": draw(2, len(tokens.lengths), 2).float()},
        lambda logits, tokens, goal: several_classes_cross_entropy(logits, goal["labels"]).mean(),
    ),
    "number": Task(
        SequenceClassifier,
        SEQUENCE,
        {"num_labels": 1},
        lambda tokens: {"labels": draw(9, len(tokens.lengths)) / 3},
        lambda logits, tokens, goal: squared_error(logits, goal["labels"]).mean(),
    ),
    "tag": Task(TokenClassifier, "TokenClassification", named(LABELS), token_labels, token_loss),
    "qa": Task(
        QuestionAnswerer,
        "QuestionAnswering",
        {},
        lambda tokens: {
            "start_positions": draw(4, len(tokens.lengths)),
            "end_positions": 4 + draw(4, len(tokens.lengths)),
        },
        span_loss,
    ),
}


def batch(lengths: tuple[int, ...], segments: bool) -> PackedTokens:
    ids = 6 + draw(20, sum(lengths))
    types = torch.cat([(torch.arange(n) > n // 2).long() for n in lengths]) if segments else None
    return PackedTokens(ids, lengths, types)


def run_theirs(model: Any, tokens: PackedTokens, **targets: Tensor) -> Any:
    inputs = {
        "input_ids": tokens.pad(tokens.input_ids, model.config.pad_token_id),
        "attention_mask": mask_of(tokens),
    }
    if tokens.token_type_ids is not None:
        inputs["token_type_ids"] = tokens.pad(tokens.token_type_ids)
    if "labels" in targets and len(targets["labels"]) == tokens.total:
        targets = {"labels": tokens.pad(targets["labels"], IGNORED)}
    return model(**inputs, **targets)


def their_logits(output: Any, tokens: PackedTokens) -> Tensor:
    """Give the reference's logits the form of ours: by text, or by token without padding."""
    if hasattr(output, "start_logits"):
        both = torch.stack([output.start_logits, output.end_logits], dim=-1)
        return both[mask_of(tokens).bool()]
    logits: Tensor = output.logits
    return logits if logits.ndim == 2 else logits[mask_of(tokens).bool()]


@pytest.fixture
def task(name: str) -> Task:
    return TASKS[name]


@pytest.fixture
def pair(task: Task, family: str, tmp_path: Path) -> tuple[Any, Model]:
    """A random model that transformers wrote, and ours from its folder."""
    folder = bare(tmp_path / "theirs", family, f"For{task.theirs}", **task.settings)
    theirs = getattr(transformers, f"AutoModelFor{task.theirs}").from_pretrained(folder)
    return theirs.eval(), task.ours.load(folder)


every_head = pytest.mark.parametrize("name", TASKS)
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.mark.thorough
@every_head
@every_family
def test_logits_losses_and_gradients_equal(
    pair: tuple[Any, Model], task: Task, name: str, family: str, tmp_path: Path
) -> None:
    theirs, ours = pair
    tokens = batch(ODD, ours.gets_segment_ids)
    with torch.no_grad():
        assert_close(ours(tokens), their_logits(run_theirs(theirs, tokens), tokens))
    # Losses are compared without padding, since transformers' loss of spans counts it.
    tokens = batch(EQUAL, ours.gets_segment_ids)
    goal = task.targets(tokens)
    expected = run_theirs(theirs, tokens, **goal).loss
    got = task.loss(ours(tokens), tokens, goal)
    assert_close(got, expected, "losses")
    for loss in (got, expected):
        loss.backward()
    with torch.no_grad():  # gradients travel through our own writer to get their names
        for parameter in (*ours.parameters(), *theirs.parameters()):
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    ours.save(tmp_path / "gradients")
    again = type(theirs).from_pretrained(tmp_path / "gradients")
    assert_same_parameters(again, theirs, 1e-5)


@pytest.mark.thorough
@every_head
@every_family
def test_twenty_steps_equal(pair: tuple[Any, Model], task: Task, name: str, family: str) -> None:
    theirs, ours = pair
    tokens = batch(EQUAL, ours.gets_segment_ids)
    goal = task.targets(tokens)
    config = OptimConfig(lr=1e-3)
    models: list[tuple[nn.Module, Callable[[], Tensor]]] = [
        (ours, lambda: task.loss(ours(tokens), tokens, goal)),
        (theirs, lambda: run_theirs(theirs, tokens, **goal).loss),
    ]
    losses = []
    for model, loss_of in models:
        optimizer = make_optimizer(model, config)
        for _ in range(20):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.detach())
    assert_close(torch.stack(losses[:20]), torch.stack(losses[20:]), "losses", 1e-4)
    assert losses[19] < losses[0]
    # Not the parameters: the gradient of a key bias is 0 up to rounding, which Adam scales up.
    with torch.no_grad():
        difference = ours(tokens) - their_logits(run_theirs(theirs, tokens), tokens)
    if name == "qa":  # a constant, added to all tokens of a text, changes no loss
        difference = difference - difference.mean(dim=0)
    assert_close(difference, torch.zeros(()), "logits", 1e-4)


@pytest.mark.thorough
@every_head
@every_family
def test_folders_load_both_ways(
    pair: tuple[Any, Model], task: Task, name: str, family: str, tmp_path: Path
) -> None:
    theirs, ours = pair
    ours.save(tmp_path / "ours")
    back = getattr(transformers, f"AutoModelFor{task.theirs}").from_pretrained(tmp_path / "ours")
    assert_same_parameters(back, theirs)
    assert back.config.id2label == theirs.config.id2label
    again = task.ours.load(tmp_path / "ours")
    assert_same_parameters(again, ours)
    assert again.labels == ours.labels
    if isinstance(again, SequenceClassifier) and isinstance(ours, SequenceClassifier):
        assert again.kind == ours.kind == name


@pytest.mark.parametrize("name", ["class", "tag", "qa"])
def test_another_activation_in_a_head_is_refused(task: Task, name: str, tmp_path: Path) -> None:
    folder = bare(tmp_path, "modernbert", f"For{task.theirs}", classifier_activation="relu")
    with pytest.raises(ModelError, match="classifier_activation is 'relu', and the native"):
        task.ours.load(folder)
