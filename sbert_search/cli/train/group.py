"""The group `train`: train a bi-encoder, a cross-encoder or a task head on labelled text."""

from __future__ import annotations

import click

from sbert_search.cli.lazy_group import lazy_group
from sbert_search.cli.train.run import train_by_recipe, training_command

_COMMANDS = {
    "bi-encoder": "sbert_search.cli.train.group:bi_encoder",
    "cross-encoder": "sbert_search.cli.train.group:cross_encoder",
}


@click.group(cls=lazy_group("train", _COMMANDS))
def train() -> None:
    """Train a bi-encoder, a cross-encoder or a task head on labelled text."""


def _bi_encoder_settings() -> type:
    from sbert_search.train.bi_encoder import BiEncoderRecipe

    return BiEncoderRecipe


def _cross_encoder_settings() -> type:
    from sbert_search.train.cross_encoder import CrossEncoderRecipe

    return CrossEncoderRecipe


@training_command("bi-encoder", _bi_encoder_settings)
def bi_encoder(**_: object) -> None:
    """Train a sentence encoder.

    RECIPE is the name of a shipped recipe or a TOML file.

    \b
    sbert-search train bi-encoder nli --set model=FOLDER \\
        --set data.train=pairs.jsonl --out my-model
    sbert-search index build SOURCE --out my.index --model my-model/model
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder

    train_by_recipe("bi-encoder", BiEncoderRecipe, train_bi_encoder)


@training_command("cross-encoder", _cross_encoder_settings)
def cross_encoder(**_: object) -> None:
    """Train a cross-encoder.

    It predicts classes or scores of pairs of texts, or relevance for reranking. RECIPE is the name
    of a shipped recipe or a TOML file.

    \b
    sbert-search train cross-encoder relevance \\
        --set data.train=judged.jsonl --out my-reranker
    sbert-search search my.index QUERY --rerank my-reranker/model
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder

    train_by_recipe("cross-encoder", CrossEncoderRecipe, train_cross_encoder)
