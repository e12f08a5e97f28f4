"""`fill-mask`: print the tokens that a masked language model predicts."""

from __future__ import annotations

import dataclasses

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.options.shared import shared_options


@click.command("fill-mask")
@click.argument("model")
@click.argument("text")
@click.option("-k", default=5, show_default=True, help="Number of tokens to print for each [MASK].")
@shared_options("device", "quiet", "json")
def fill_mask(model: str, text: str, k: int, device: str, as_json: bool) -> None:
    """Predict the most probable tokens for each [MASK] of TEXT.

    MODEL is the folder `model` of a `pretrain` run, or a published masked language model. Such a
    model reads the text on both sides of a mask; it cannot continue a text.
    """
    from sbert_search.base.device import resolve_device
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.models.pretraining import fill_mask as fill

    loaded = MaskedLanguageModel.load(resolve_model(model).path).to(resolve_device(device))
    predictions = fill(loaded, text, k=k)
    if as_json:
        for prediction in predictions:
            emit(dataclasses.asdict(prediction))
    else:
        rows = [(p.hole + 1, p.rank, p.token, p.probability, p.text) for p in predictions]
        show_table(("mask", "rank", "token", "probability", "text"), rows)
