"""The command group `analyze`; options that its commands share, and a reader for their sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from sbert_search.cli.lazy_group import LazyGroup
from sbert_search.cli.options.shared import Decorator


@click.group(cls=LazyGroup)
def analyze() -> None:
    """Analyze models and indexes."""


FOLDER = click.Path(file_okay=False, path_type=Path)

out_option: Decorator = click.option(
    "--out", type=FOLDER, help="Folder for the files of the analysis."
)
text_field_option: Decorator = click.option(
    "--text-field", metavar="NAME", help="Field that holds the text.  [default: detected]"
)


def texts_option(default: int, *, fewest: int) -> Decorator:
    """Make the option ``--texts``, the largest number of texts to analyse."""
    return click.option(
        "--texts",
        "most_texts",
        type=click.IntRange(fewest),
        default=default,
        show_default=True,
        help="Largest number of texts to analyse, chosen at random.",
    )


def read_texts(sources: tuple[str, ...], text_field: str | None) -> Iterator[str]:
    """Yield the texts of the sources."""
    from sbert_search.lab.inputs import texts_of
    from sbert_search.text.documents import CorpusReader, FieldNames

    yield from texts_of(CorpusReader(sources, fields=FieldNames(text=text_field)))
