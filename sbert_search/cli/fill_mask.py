"""`sbert-search fill-mask`: what a masked language model guesses."""

from __future__ import annotations

import dataclasses

import click

from sbert_search.cli.console import emit, show_table
from sbert_search.cli.shared_options import shared_options


@click.command("fill-mask")
@click.argument("model")
@click.argument("text")
@click.option("-k", default=5, show_default=True, help="Words for each hole.")
@shared_options("device", "quiet", "json")
def fill_mask(model: str, text: str, k: int, device: str, as_json: bool) -> None:
    """Fill the holes of TEXT, written [MASK], with the words that MODEL finds most probable.

    MODEL is a checkpoint of `pretrain` (its folder model) or a published masked language model.
    An encoder sees both sides of a hole: it fills holes, but cannot write on behind a text.
    """
    from sbert_search.models.fill_mask import fill_mask as fill
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.runtime.device import resolve_device

    loaded = MaskedLanguageModel.load(resolve_model(model).path).to(resolve_device(device))
    found = fill(loaded, text, k=k)
    if as_json:
        for word in found:
            emit(dataclasses.asdict(word))
    else:
        rows = [(w.hole + 1, w.rank, w.token, w.probability, w.text) for w in found]
        show_table(("hole", "rank", "word", "probability", "text"), rows)
