"""`pretrain`: train an encoder on raw text."""

from __future__ import annotations

from sbert_search.cli.train.run import train_by_recipe, training_command


def _settings() -> type:
    from sbert_search.train.pretrain import PretrainRecipe

    return PretrainRecipe


@training_command("pretrain", _settings)
def pretrain(**_: object) -> None:
    """Train an encoder on raw text.

    The run starts from random weights or, with the recipe `continue`, from a published encoder.
    Set the text with --set data.train=SOURCE, the tokenizer with --set tokenizer=FOLDER (a folder
    of `tokenizer train`) and the size of the encoder with --set size=tiny|mini|small|base.
    """
    from sbert_search.train.pretrain import PretrainRecipe
    from sbert_search.train.pretrain import pretrain as run

    train_by_recipe("pretrain", PretrainRecipe, run)
