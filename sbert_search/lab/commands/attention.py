"""`analyze attention`: what the heads of a model attend to, and which can be removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import refuse_typed, shared_options
from sbert_search.lab.commands.options import (
    out_option,
    read_texts,
    text_field_option,
    texts_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbert_search.lab.attention.corpus import HeadReport
    from sbert_search.lab.attention.figures import HeadFigures
    from sbert_search.lab.attention.maps import AttentionMaps
    from sbert_search.lab.attention.pruning import Pruning

COLUMNS = ("layer", "head", "entropy", "distance", "first", "sep.", "self", "prev.", "next")


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("text", metavar="TEXT")
@click.argument("second", metavar="[TEXT2]", required=False)
@out_option
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="SOURCE",
    help="Texts over which every head is measured; may be repeated.",
)
@click.option(
    "--sts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Scored pairs that judge which heads can be removed.  [default: masked tokens of "
    "--source, if the model predicts them]",
)
@texts_option(1000, fewest=2)
@text_field_option
@shared_options("device", "seed", "quiet", "json")
def attention(
    model: str,
    text: str,
    second: str | None,
    out: Path | None,
    sources: tuple[str, ...],
    sts: Path | None,
    most_texts: int,
    text_field: str | None,
    device: str,
    seed: int,
    as_json: bool,
) -> None:
    """Show what the attention heads of MODEL attend to.

    The heads are measured for TEXT, or for the pair TEXT and TEXT2 as a cross-encoder reads it.
    --out writes the probabilities of every layer and head, and a page that shows them.

    With --source, every head is also measured over many texts. With --sts, or if the model predicts
    masked tokens, the least important heads are then removed and the model is measured again.
    SOURCE is a text file with a sentence in each line, or any file or folder that `index build`
    reads.
    """
    from sbert_search.lab.attention.maps import analyze_attention

    if sts is not None and not sources:
        raise click.UsageError("--sts needs --source, the texts over which heads are measured.")
    if not sources:
        unused = ["most_texts", "text_field", "seed"]
        refuse_typed(click.get_current_context(), unused, "without --source")
    maps = analyze_attention(model, text, second, device=device)
    _emit_maps(maps) if as_json else _show_heads(f"{len(maps.tokens)} tokens", maps.heads)
    written = maps.write(out) if out else []
    if sources:
        from sbert_search.lab.attention.corpus import analyze_heads

        texts = read_texts(sources, text_field)
        report = analyze_heads(
            model, texts, sts=sts, most_texts=most_texts, device=device, seed=seed
        )
        emit(report.to_mapping()) if as_json else _show_report(report)
        written += report.write(out) if out else []
    for path in written:
        note(f"wrote {path}")


def _emit_maps(maps: AttentionMaps) -> None:
    """Print the tokens, then a line for each head with its probabilities."""
    record = maps.to_mapping()
    del record["heads"]
    emit(record)
    for figures in maps.heads:
        matrix = maps.probabilities[figures.layer - 1, figures.head - 1]
        place = {"layer": figures.layer, "head": figures.head}
        emit({**place, "probabilities": matrix.round(6).astype(float).tolist()})


def _show_heads(title: str, heads: Sequence[HeadFigures]) -> None:
    from sbert_search.lab.attention.figures import NAMES

    say(title)
    rows = [
        (each.layer, each.head, *(float(getattr(each, name)) for name in NAMES)) for each in heads
    ]
    show_table(COLUMNS, rows)


def _show_report(report: HeadReport) -> None:
    _show_heads(f"{report.texts:,} texts, {report.tokens:,} tokens", report.heads)
    if report.pruning is not None:
        _show_pruning(report.pruning)


def _show_pruning(pruning: Pruning) -> None:
    whole = pruning.removals[0].score
    rows = [(each.removed, each.score, each.score - whole) for each in pruning.removals]
    show_table(("heads removed", pruning.metric, "change"), rows)
    first = ", ".join(f"{layer}-{head}" for layer, head in pruning.order[:10])
    say(f"The least important heads, as layer-head: {first}")
    say(
        f"Without the {pruning.removable} least important of {len(pruning.order)} heads, the "
        f"{pruning.metric} is at most 1 % worse than with all heads."
    )
