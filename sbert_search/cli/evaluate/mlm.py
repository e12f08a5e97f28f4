"""`eval mlm`: a masked language model on held-out text."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from sbert_search.cli.console import emit, show_facts
from sbert_search.cli.shared_options import shared_options


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--model", required=True, metavar="NAME|FOLDER", help="With a masked-language head.")
@click.option("--max-len", default=128, show_default=True, help="Tokens of an example.")
@click.option("--examples", default=512, show_default=True, help="Examples used at most.")
@click.option(
    "--pseudo",
    default=0,
    show_default=True,
    help="Examples for pseudo-perplexity, which masks every token in turn.",
)
@click.option("--text-field", help="Name of the field to read, where it is not to be detected.")
@click.option("--wrapped", is_flag=True, help="Lines are broken to a width, as in books.")
@shared_options("device", "quiet", "json")
def mlm(sources: tuple[str, ...], model: str, as_json: bool, **options: Any) -> None:
    """Let a model guess 15 % of the words of SOURCE, always the same ones.

    Beside loss and perplexity stands the unigram entropy of the text: the loss of knowing only how
    often each token occurs. Losses compare between models of one vocabulary only.
    """
    from sbert_search.corpus.documents import CorpusReader, FieldNames
    from sbert_search.evaluation.perplexity import evaluate_masked
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.runtime.device import resolve_device

    loaded = MaskedLanguageModel.load(resolve_model(model).path)
    figures = evaluate_masked(
        loaded.to(resolve_device(options["device"])),
        CorpusReader(sources, fields=FieldNames(text=options["text_field"])),
        max_len=options["max_len"],
        most=options["examples"],
        pseudo=options["pseudo"],
        wrapped=options["wrapped"],
    )
    facts = dataclasses.asdict(figures)
    emit(facts) if as_json else show_facts(facts)
