"""`eval mlm`: measure a masked language model on held-out text."""

from __future__ import annotations

import dataclasses

import click

from sbert_search.cli.console import emit, show_facts
from sbert_search.cli.options.shared import shared_options


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--model", required=True, metavar="NAME|FOLDER", help="Masked language model.")
@click.option(
    "--max-len",
    type=click.IntRange(min=8),
    default=128,
    show_default=True,
    help="Maximum number of tokens of one example.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Maximum number of examples.",
)
@click.option(
    "--pseudo",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of examples for the pseudo-perplexity, which masks one token at a time; 0: none.",
)
@click.option("--text-field", help="Field that holds the text.  [default: detected]")
@click.option(
    "--wrapped",
    is_flag=True,
    help="Join the lines of a paragraph, for text wrapped to a fixed width, as in books.",
)
@shared_options("device", "quiet", "json")
def mlm(
    sources: tuple[str, ...],
    model: str,
    max_len: int,
    examples: int,
    pseudo: int,
    text_field: str | None,
    wrapped: bool,
    device: str,
    as_json: bool,
) -> None:
    """Measure how well a model predicts masked tokens of SOURCE.

    15 % of the tokens are masked, the same ones in every run. The output has the loss, the
    perplexity and the unigram entropy of the text, which is the loss of a model that knows only
    how often each token occurs. Compare losses only between models with the same vocabulary.
    """
    from sbert_search.base.device import resolve_device
    from sbert_search.evaluate.perplexity import evaluate_masked
    from sbert_search.models.loading.resolve import resolve_model
    from sbert_search.models.pretraining import MaskedLanguageModel
    from sbert_search.text.documents import CorpusReader, FieldNames

    loaded = MaskedLanguageModel.load(resolve_model(model).path)
    report = evaluate_masked(
        loaded.to(resolve_device(device)),
        CorpusReader(sources, fields=FieldNames(text=text_field)),
        max_len=max_len,
        most=examples,
        pseudo=pseudo,
        wrapped=wrapped,
    )
    facts = dataclasses.asdict(report)
    emit(facts) if as_json else show_facts(facts)
