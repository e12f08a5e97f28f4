"""`analyze anisotropy`: the anisotropy of a model's vectors, and the effect of remedies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import refuse_typed, shared_options
from sbert_search.lab.commands.options import (
    FOLDER,
    out_option,
    read_texts,
    text_field_option,
    texts_option,
)

if TYPE_CHECKING:
    from sbert_search.lab.anisotropy.report import AnisotropyReport

FEWEST = 10  # fewest texts that `analyze_anisotropy` accepts
REMEDIES = ("whitening", "all-but-the-top", "standardising")


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("sources", metavar="[SOURCE]...", nargs=-1)
@out_option
@click.option(
    "--sts",
    multiple=True,
    metavar="TASK|FILE",
    help="Scored pairs on which the remedies are measured; may be repeated.",
)
@click.option(
    "--retrieval",
    multiple=True,
    metavar="TASK|FOLDER",
    help="BEIR folder on which the remedies are measured; may be repeated.",
)
@click.option("--split", default="test", show_default=True, help="Split of a BEIR folder.")
@click.option(
    "--data",
    type=FOLDER,
    default="data",
    show_default=True,
    help="Folder that the paths in task files start from.",
)
@click.option(
    "--save-whitened",
    type=FOLDER,
    metavar="FOLDER",
    help="Write the model with the map of --remedy as its last Dense module.",
)
@click.option(
    "--remedy",
    type=click.Choice(REMEDIES),
    default=REMEDIES[0],
    show_default=True,
    help="Remedy that --save-whitened saves.",
)
@click.option(
    "--whitened-dim",
    type=click.IntRange(1),
    metavar="N",
    help="Dimensions that whitening keeps.  [default: all]",
)
@click.option(
    "--directions",
    type=click.IntRange(0),
    metavar="N",
    help="Directions that all-but-the-top removes.  [default: one for each 100 dimensions]",
)
@texts_option(10_000, fewest=FEWEST)
@text_field_option
@shared_options("device", "seed", "quiet", "json")
def anisotropy(
    model: str,
    sources: tuple[str, ...],
    out: Path | None,
    sts: tuple[str, ...],
    retrieval: tuple[str, ...],
    split: str,
    data: Path,
    save_whitened: Path | None,
    remedy: str,
    whitened_dim: int | None,
    directions: int | None,
    most_texts: int,
    text_field: str | None,
    device: str,
    seed: int,
    as_json: bool,
) -> None:
    """Measure the anisotropy of the vectors of MODEL.

    The first table has figures of each layer over the texts of SOURCE: mean cosines of tokens and
    of sentences, self-similarity of words, and shares of single directions and dimensions. The
    second table has the sentence vectors without and with three remedies, each fitted on one half
    of the texts, and the scores on the tasks of --sts and --retrieval.

    SOURCE is a text file with a sentence in each line, or any file or folder that `index build`
    reads.
    """
    from sbert_search.lab.anisotropy.analyze import analyze_anisotropy
    from sbert_search.lab.anisotropy.saving import require_free, save_with_map

    if not sources:
        raise click.UsageError(
            "Name SOURCE: a text file with a sentence in each line; some hundred sentences of the "
            "kind that the model will embed."
        )
    if save_whitened is None:
        refuse_typed(click.get_current_context(), ["remedy"], "without --save-whitened")
    else:
        require_free(save_whitened)
    report = analyze_anisotropy(
        model,
        read_texts(sources, text_field),
        sts=sts,
        retrieval=retrieval,
        split=split,
        data=data,
        whitened_dim=whitened_dim,
        directions=directions,
        most_texts=most_texts,
        device=device,
        seed=seed,
    )
    emit(report.to_mapping()) if as_json else _show(report)
    for path in report.write(out) if out else ():
        note(f"wrote {path}")
    if save_whitened is not None:
        save_with_map(model, report.remedies[remedy], save_whitened)
        note(f"wrote {save_whitened}, the model with {remedy}")


def _show(report: AnisotropyReport) -> None:
    say(f"{report.texts:,} texts, {report.layers[0].tokens:,} tokens, without special tokens")
    show_table(*report.layer_table())
    say(f"Sentence vectors of {report.texts - report.fitted_on:,} texts")
    say(f"The remedies were fitted on the other {report.fitted_on:,}.")
    show_table(*report.remedy_table())
