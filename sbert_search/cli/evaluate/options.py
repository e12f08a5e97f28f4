"""Argument and options of the `eval` commands that run tasks, and the opening of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sbert_search.base.progress import note
from sbert_search.cli.options.shared import (
    HEAD_PRECISIONS,
    PRECISIONS,
    F,
    NarrowPrecision,
    choice,
    shared_options,
)

if TYPE_CHECKING:
    from sbert_search.base.device import Precision
    from sbert_search.embed.engines.protocol import EngineName
    from sbert_search.embed.protocol import TextEmbedder
    from sbert_search.search.rerankers import Reranker

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

no_cache = click.option(
    "--no-cache", is_flag=True, help="Do not read or write the cache of embeddings."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """The values of the argument and options that `eval_options` or `head_eval_options` adds."""

    tasks: tuple[str, ...]
    suite: Path | None
    data: Path
    split: str
    out: Path | None
    expect: Path | None
    model: str | None
    device: str
    precision: Precision
    seed: int
    as_json: bool
    engine: EngineName = "native"
    calibrate: Path | None = None
    no_cache: bool = False

    @classmethod
    def of(cls, ctx: click.Context) -> EvalOptions:
        """Collect the options of the running command."""
        names = [field.name for field in fields(cls) if field.name in ctx.params]
        return cls(**{name: ctx.params[name] for name in names})

    @contextmanager
    def embedder(self) -> Iterator[TextEmbedder]:
        """Open the bi-encoder, with the cache of embeddings unless --no-cache is given."""
        from sbert_search.embed.cache import CachedEmbedder
        from sbert_search.embed.embedder import Embedder, open_embedder

        embedder = open_embedder(
            self.model,
            device=self.device,
            engine=self.engine,
            precision=self.precision,
            calibrate=self.calibrate,
        )
        if self.no_cache or not isinstance(embedder, Embedder):
            yield embedder
            return
        with closing(CachedEmbedder(embedder)) as cached:
            yield cached
            note(f"{cached.computed:,} texts were embedded, {cached.cached:,} came from the cache.")

    def cross_encoder(self, model: str | None) -> Reranker:
        """Open a cross-encoder.

        Raises:
            UsageError: ``model`` is None.
        """
        from sbert_search.search.rerankers import Reranker

        if model is None:
            raise click.UsageError("Name a cross-encoder with --model.")
        return Reranker(
            model,
            device=self.device,
            engine=self.engine,
            precision=self.precision,
            calibrate=self.calibrate,
        )


def eval_options(function: F) -> F:
    """Add the argument and options of an `eval` command that runs tasks; see `EvalOptions`."""
    return _with_options(function, PRECISIONS, "model", "device", "engine", "calibrate")


def head_eval_options(function: F) -> F:
    """Add the options of `eval_options`, except those that models with a task head lack."""
    return _with_options(function, HEAD_PRECISIONS, "model", "device")


def _with_options(function: F, precisions: Sequence[str], *model: str) -> F:
    for decorate in (
        shared_options("seed", "quiet", "json"),
        choice(
            "precision",
            *sorted(precisions, key="fp32".__ne__),  # published scores use fp32
            cls=NarrowPrecision,
            help="Number format of the model's computation; published scores use fp32.",
        ),
        shared_options(*model),
        click.option(
            "--expect",
            type=FILE,
            help="File of expected scores; exit with 1 if a score is outside its tolerance.",
        ),
        click.option("--out", type=FOLDER, help="Folder for reports with the score of each item."),
        click.option(
            "--split",
            default="test",
            show_default=True,
            help="Split of a DATA folder; a TASK has its own.",
        ),
        click.option(
            "--data",
            type=FOLDER,
            default="data",
            show_default=True,
            help="Folder that the paths in task files are relative to.",
        ),
        click.option("--suite", type=FILE, help="File that lists the tasks of one report."),
        click.argument("tasks", nargs=-1, metavar="[TASK|DATA]..."),
    ):
        function = decorate(function)
    return function
