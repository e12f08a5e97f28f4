"""Train a task head with dropout, going on from the newest checkpoint if there is one.

Usage: python -m tests.heads.training.killed_child OUT classify|tag|qa
It writes a byte for each micro-batch that is made. The data lie beside the run.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

from sbert_search.config import from_mapping
from sbert_search.heads.train_answerer import AnswerRecipe, train_answerer
from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
from sbert_search.heads.train_tagger import TagRecipe, train_tagger
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.step import Stepper
from tests.heads.training.small import QUICK, encoder_folder, write_rows
from tests.heads.training.test_answer import questions
from tests.heads.training.test_classify import texts
from tests.heads.training.test_tag import sentences

STEPS = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "classify": {"pooling": "mean", "adversarial": {"kind": "smart"}},
    "tag": {"crf": True},
    "qa": {"windows": {"overlap": 2}, "max_len": 16},
}


def rows(kind: str) -> list[dict[str, Any]]:
    if kind == "tag":
        return sentences(60)
    if kind == "qa":
        return questions(60, True)
    return [{"sentence": r["sentence"], "label": str(len(r["animals"]))} for r in texts(60)]


def main(out: Path, kind: str) -> None:
    torch.set_num_threads(1)
    data = out.parent / f"{kind}.jsonl"
    if not data.exists():
        write_rows(data, rows(kind))
    collate = Stepper._collate

    def telling(*given: Any) -> Any:
        os.write(sys.stdout.fileno(), b".")
        return collate(*given)

    setattr(Stepper, "_collate", telling)  # noqa: B010
    settings = QUICK | {
        "data": {"train": str(data), "held_out": 0.2},
        "model": str(encoder_folder(out.parent)),
        "budget": {"steps": STEPS},
        "checkpoint": {"every": 3},
        "evaluation": {"every": 10},
    }
    settings |= SETTINGS[kind]
    resume = bool(checkpoints(out))
    if kind == "classify":
        train_classifier(from_mapping(ClassifyRecipe, settings), out, resume=resume)
    elif kind == "tag":
        train_tagger(from_mapping(TagRecipe, settings), out, resume=resume)
    else:
        train_answerer(from_mapping(AnswerRecipe, settings), out, resume=resume)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
