"""`sbert-search pretrain`: an encoder of one's own, from raw text."""

from __future__ import annotations

from typing import Any

from sbert_search.cli.train.run import train_by_recipe, training_command


@training_command("pretrain")
def pretrain(**_: Any) -> None:
    """Train an encoder on raw text, or go on from a published one.

    Name the text by --set data.train=SOURCE and the vocabulary by --set tokenizer=FOLDER (as
    `tokenizer train` makes it); --set size=tiny|mini|small|base picks the shape.
    """
    from sbert_search.training.pretraining.pretrain import PretrainRecipe
    from sbert_search.training.pretraining.pretrain import pretrain as run

    train_by_recipe("pretrain", PretrainRecipe, run)
