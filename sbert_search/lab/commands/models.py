"""`analyze anisotropy`, `analyze attention` and `analyze variants`: analyses of models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.console import emit, say, show_table
from sbert_search.cli.options.shared import Finite, refuse_typed, shared_options
from sbert_search.lab.commands import (
    FOLDER,
    out_option,
    read_texts,
    text_field_option,
    texts_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbert_search.lab.anisotropy.analyze import AnisotropyReport
    from sbert_search.lab.attention.corpus import HeadReport
    from sbert_search.lab.attention.maps import AttentionMaps, HeadFigures


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
    from sbert_search.lab.anisotropy.remedies import require_free, save_with_map

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
    emit(report.to_mapping()) if as_json else _show_anisotropy(report)
    for path in report.write(out) if out else ():
        note(f"wrote {path}")
    if save_whitened is not None:
        save_with_map(model, report.remedies[remedy], save_whitened)
        note(f"wrote {save_whitened}, the model with {remedy}")


def _show_anisotropy(report: AnisotropyReport) -> None:
    say(f"{report.texts:,} texts, {report.layers[0].tokens:,} tokens, without special tokens")
    show_table(*report.layer_table())
    say(f"Sentence vectors of {report.texts - report.fitted_on:,} texts")
    say(f"The remedies were fitted on the other {report.fitted_on:,}.")
    show_table(*report.remedy_table())


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
    from sbert_search.lab.attention.maps import NAMES

    say(title)
    rows = [
        (each.layer, each.head, *(float(getattr(each, name)) for name in NAMES)) for each in heads
    ]
    show_table(COLUMNS, rows)


def _show_report(report: HeadReport) -> None:
    _show_heads(f"{report.texts:,} texts, {report.tokens:,} tokens", report.heads)
    if (pruning := report.pruning) is None:
        return
    whole = pruning.removals[0].score
    rows = [(each.removed, each.score, each.score - whole) for each in pruning.removals]
    show_table(("heads removed", pruning.metric, "change"), rows)
    first = ", ".join(f"{layer}-{head}" for layer, head in pruning.order[:10])
    say(f"The least important heads, as layer-head: {first}")
    say(
        f"Without the {pruning.removable} least important of {len(pruning.order)} heads, the "
        f"{pruning.metric} is at most 1 % worse than with all heads."
    )


@click.command()
@click.argument(
    "recipe", metavar="RECIPE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--out", type=FOLDER, required=True, help="Folder for the report and the runs.")
@click.option(
    "--data",
    type=FOLDER,
    default="data",
    show_default=True,
    help="Folder of the data sets, for which @/ stands in RECIPE.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Number of runs of each family.",
)
@click.option(
    "--minutes",
    type=Finite(min=0),
    help="Time limit; no piece starts whose estimated end is later.  [default: none]",
)
@click.option("--plan", is_flag=True, help="Print the plan with its estimated time, and stop.")
@shared_options("device", "quiet", "json")
def variants(
    recipe: Path,
    out: Path,
    data: Path,
    seeds: int,
    minutes: float | None,
    plan: bool,
    device: str,
    as_json: bool,
) -> None:
    """Compare encoder families at one equal budget.

    The families of RECIPE, such as BERT and ALBERT, are pre-trained on one corpus with one
    vocabulary, fine-tuned alike and measured. One table is at equal tokens, the other at equal
    seconds of processor time. The plan with its estimated time is printed first. If the command is
    repeated, it continues where it stopped.
    """
    from sbert_search.lab.variants.report import TITLES, table_of
    from sbert_search.lab.variants.run import analyze_variants, plan_lines, plan_variants

    if plan:
        planned = plan_variants(recipe, out, data=data, seeds=seeds, device=device)
        for piece in planned if as_json else ():
            emit({**piece})
        for line in () if as_json else plan_lines(planned):
            say(line)
        return
    report = analyze_variants(recipe, out, data=data, seeds=seeds, minutes=minutes, device=device)
    if as_json:
        emit(report.to_mapping())
    else:
        for budget, figures in report.tables.items():
            say(TITLES[budget])
            show_table(*table_of(figures))
        say("Pre-training")
        show_table(*table_of(report.training))
    if report.missing:
        note(f"{len(report.missing)} pieces are not finished; repeat the command to go on.")
    note(f"wrote {out / 'variants.md'}")
