"""What a user of task heads writes: type checkers accept it and know every type.

It is checked and never run; see `tests/typing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from sbert_search import (
    AnswerRecipe,
    ClassifyRecipe,
    HitAnswer,
    Index,
    Predictor,
    SearchEngine,
    TagRecipe,
    TextAnswer,
    TextEntities,
    TextEntity,
    TextLabel,
    load_recipe,
    train_answerer,
    train_classifier,
    train_tagger,
)


def predict(index: Index) -> None:
    predictor = Predictor("a-classifier", device="cpu", precision="fp32")
    assert_type(predictor.classify(["a text", ("a text", "another")]), list[TextLabel])
    found = predictor.tag(["a text"])
    assert_type(found, list[TextEntities])
    assert_type(found[0].entities, tuple[TextEntity, ...])
    assert_type(predictor.tag_words([["a", "text"]]), list[list[str]])
    assert_type(predictor.answer([("a question", "a text")]), list[TextAnswer])
    for prediction in predictor.predict(["a text"]):
        assert_type(prediction.to_row(), dict[str, object])
    engine = SearchEngine(index, reader=Predictor("a-reader"))
    assert_type(engine.search("a question", answer_depth=3)[0].answer, HitAnswer | None)


def train() -> None:
    reviews = load_recipe(ClassifyRecipe, "classify", "sst2")
    train_classifier(reviews, Path("run"), resume=True)
    train_tagger(load_recipe(TagRecipe, "tag", "wnut17"), Path("run"))
    train_answerer(load_recipe(AnswerRecipe, "qa", "squad"), Path("run"))
