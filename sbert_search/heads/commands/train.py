"""`train classify`, `train tag` and `train qa`: train task heads on labelled text."""

from __future__ import annotations

from sbert_search.cli.train.run import train_by_recipe, training_command


def _classify_settings() -> type:
    from sbert_search.heads.training.classify import ClassifyRecipe

    return ClassifyRecipe


def _tag_settings() -> type:
    from sbert_search.heads.training.tag import TagRecipe

    return TagRecipe


def _answer_settings() -> type:
    from sbert_search.heads.training.answer import AnswerRecipe

    return AnswerRecipe


@training_command("classify", _classify_settings)
def classify(**_: object) -> None:
    """Train a classifier of texts or pairs.

    It predicts one class, several classes, or a number. RECIPE is the name of a shipped recipe or a
    TOML file.

    \b
    sbert-search train classify sst2 \\
        --set data.train=reviews.jsonl --out my-classifier
    sbert-search predict my-classifier/model new.jsonl
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.training.classify import ClassifyRecipe, train_classifier

    train_by_recipe("classify", ClassifyRecipe, train_classifier)


@training_command("tag", _tag_settings)
def tag(**_: object) -> None:
    """Train a tagger of entities in text.

    RECIPE is the name of a shipped recipe or a TOML file.

    \b
    sbert-search train tag wnut17 \\
        --set data.train=sentences.jsonl --out my-tagger
    sbert-search predict my-tagger/model new.jsonl
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.training.tag import TagRecipe, train_tagger

    train_by_recipe("tag", TagRecipe, train_tagger)


@training_command("qa", _answer_settings)
def qa(**_: object) -> None:
    """Train a model that finds the answer to a question in a text.

    RECIPE is the name of a shipped recipe or a TOML file.

    \b
    sbert-search train qa squad \\
        --set data.train=questions.jsonl --out my-reader
    sbert-search search my.index QUERY --answer my-reader/model
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.heads.training.answer import AnswerRecipe, train_answerer

    train_by_recipe("qa", AnswerRecipe, train_answerer)
