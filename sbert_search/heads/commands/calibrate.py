"""`calibrate`: turn the scores of a classifier or a cross-encoder into probabilities."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from sbert_search.cli.console import emit, show_facts
from sbert_search.cli.options.shared import shared_options


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", type=click.Path(path_type=Path))
@shared_options("device", "quiet", "json")
def calibrate(model: Path, source: Path, device: str, as_json: bool) -> None:
    """Fit the temperature of MODEL to the labelled texts of SOURCE.

    MODEL is the folder of a classifier or a cross-encoder, where the temperature is stored. SOURCE
    has rows with a text or a pair and a label; for a cross-encoder with one score, the label is 1
    or 0. Take texts that the model was not trained on. Predicted classes and rankings do not
    change.
    """
    from sbert_search.heads.calibrate import calibrate as fit

    facts = dataclasses.asdict(fit(model, source, device=device))
    emit(facts) if as_json else show_facts(facts)
