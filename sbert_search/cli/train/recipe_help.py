"""Help of the training commands: the list of recipes, or the settings of one recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from sbert_search.train.recipe import Kind, describe_recipe, read_recipe, shipped_recipes

if TYPE_CHECKING:
    from sbert_search.train.recipe import Setting

_NAMED = "sbert_search.cli.train.recipe_help"  # key of (recipe, overrides) in ctx.meta
_NAME_WIDTH = 34  # in columns; a longer name is on a separate line


class RecipeCommand(click.Command):
    """A training command with two kinds of help.

    ``--help`` lists the shipped recipes. ``RECIPE --help`` lists the settings of one recipe.
    """

    kind: Kind
    settings: Callable[[], type]  # returns the dataclass of the recipe; importing it loads torch

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the recipe for ``RECIPE --help``: click shows the help before it reads RECIPE."""
        options, _, _ = self.make_parser(ctx).parse_args(list(args))
        if isinstance(options.get("recipe"), str):
            ctx.meta[_NAMED] = options["recipe"], options.get("overrides") or ()
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
        for setting in list_settings(self.settings(), values):
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
