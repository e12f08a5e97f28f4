"""Click groups that import a command at its first use, show examples and suggest names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

from sbert_search.base.options import offer_options
from sbert_search.wings import commands

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": (
        "sbert-search demo",
        "sbert-search demo --dir my-demo",
        "sbert-search demo --model hashing --quiet",
    ),
    "doctor": (
        "sbert-search doctor",
        "sbert-search doctor --json",
        "sbert-search doctor --measure my-model",
    ),
    "serve": (
        "sbert-search serve my.index",
        "sbert-search serve news=my.index --rerank my-judge --port 9000",
        "sbert-search serve my.index --host 0.0.0.0 --token-file tokens.txt",
    ),
    "mcp": (
        "sbert-search mcp my.index",
        "sbert-search mcp news=my.index --rerank my-judge",
        "sbert-search mcp my.index --precision fp32 --quiet",
    ),
    "index build": (
        "sbert-search index build docs.jsonl --out my.index",
        "sbert-search index build 'notes/*.md' --out my.index --on-truncate chunk",
        "sbert-search index build a.csv --out my.index --language german",
    ),
    "index add": (
        "sbert-search index add my.index new.jsonl",
        "sbert-search index add my.index new.jsonl --on-error skip",
        "cat new.jsonl | sbert-search index add my.index -",
    ),
    "index upsert": (
        "sbert-search index upsert my.index changes.jsonl",
        "sbert-search index upsert my.index changes.parquet --wait 60",
        "sbert-search index upsert my.index changes.csv --id-field number --quiet",
    ),
    "index sync": (
        "sbert-search index sync my.index notes",
        "sbert-search index sync my.index notes --dry-run",
        "sbert-search index sync my.index notes --watch",
    ),
    "index delete": (
        "sbert-search index delete my.index --ids 17,42",
        "sbert-search index delete my.index --ids-file gone.txt",
        "sbert-search index delete my.index --where \"year < 2000 AND kind = 'note'\"",
    ),
    "index info": (
        "sbert-search index info my.index",
        "sbert-search index info my.index --json",
        "SBERT_SEARCH_JSON=1 sbert-search index info my.index",
    ),
    "index check": (
        "sbert-search index check my.index",
        "sbert-search index check my.index --drift",
        "sbert-search index check my.index --drift --recall 0.98 --json",
    ),
    "index repair": (
        "sbert-search index repair my.index",
        "sbert-search index repair my.index --json",
        "sbert-search index repair my.index --quiet",
    ),
    "index compact": (
        "sbert-search index compact my.index",
        "sbert-search index compact my.index --memory 2G --wait 60",
        "sbert-search index compact my.index --retrain",
    ),
    "index lexical": (
        "sbert-search index lexical my.index",
        "sbert-search index lexical my.index --language german",
        "sbert-search index lexical my.index --title-weight 3 --k1 1.5",
    ),
    "index backup": (
        "sbert-search index backup my.index backups/monday.index",
        "sbert-search index backup my.index /mnt/disk/my.index --quiet",
        "sbert-search index backup my.index copy.index --json",
    ),
    "index tune": (
        "sbert-search index tune my.index --dry-run",
        "sbert-search index tune my.index --recall 0.98 --latency-ms 5",
        "sbert-search index tune my.index --queries queries.jsonl --memory 4G",
    ),
    "embed": (
        "sbert-search embed docs.jsonl --out vectors.parquet",
        "sbert-search embed a.csv --out vectors.parquet --text-field body",
        "sbert-search embed notes --out vectors.parquet --on-truncate chunk",
    ),
    "search": (
        'sbert-search search my.index "how do vaccines work?"',
        'sbert-search search my.index "old mills" -k 5 --where "year < 1990"',
        "sbert-search search my.index --queries queries.jsonl --run-out run.trec",
    ),
    "pairs": (
        "sbert-search pairs docs.jsonl --threshold 0.9",
        "sbert-search pairs my.index --top 20",
        "sbert-search pairs docs.jsonl --clusters --json",
    ),
    "eval compare": (
        "sbert-search eval compare runs/a runs/b",
        "sbert-search eval compare runs/a runs/b --metric nDCG@10",
        "sbert-search eval compare runs/a runs/b --svg plots",
    ),
    "eval fusion": (
        "sbert-search eval fusion my.index my-data",
        "sbert-search eval fusion my.index my-data --split dev",
        "sbert-search eval fusion my.index my-data --folds 10 --json",
    ),
    "eval mlm": (
        "sbert-search eval mlm held-out.txt --model my-encoder/model",
        "sbert-search eval mlm held-out.txt --model my-encoder/model --pseudo 64",
        "sbert-search eval mlm held-out.txt --model bert-base-uncased --max-len 64",
    ),
    "eval nli": (
        "sbert-search eval nli pairs.jsonl --model my-classifier/model",
        "sbert-search eval nli pairs.jsonl --model my-classifier/model --out reports",
        "sbert-search eval nli pairs.csv --model my-classifier/model --json",
    ),
    "eval rerank": (
        "sbert-search eval rerank judged.jsonl --model my-judge/model",
        "sbert-search eval rerank judged.jsonl --model my-judge/model --out reports",
        "sbert-search eval rerank judged.jsonl --model my-judge/model --json",
    ),
    "eval retrieval": (
        "sbert-search eval retrieval my-data --model my-model/model",
        "sbert-search eval retrieval my-data --mode dense --out reports",
        "sbert-search eval retrieval my-data --rerank my-reranker/model --split dev",
    ),
    "eval sts": (
        "sbert-search eval sts pairs.tsv --model my-model/model",
        "sbert-search eval sts pairs.jsonl --baselines",
        "sbert-search eval sts pairs.jsonl --model my-model/model --out reports",
    ),
    "eval triplets": (
        "sbert-search eval triplets triplets.jsonl",
        "sbert-search eval triplets triplets.jsonl --model my-model/model",
        "sbert-search eval triplets triplets.jsonl --out reports --json",
    ),
    "tokenizer train": (
        "sbert-search tokenizer train texts.txt --out my-tokenizer",
        "sbert-search tokenizer train notes --out my-tokenizer --vocab-size 8000",
        "sbert-search tokenizer train new.txt --out wider --extend my-tokenizer",
    ),
    "fill-mask": (
        'sbert-search fill-mask my-encoder/model "The cat [MASK] on the mat."',
        'sbert-search fill-mask bert-base-uncased "Paris is in [MASK]." -k 3',
        'sbert-search fill-mask my-encoder/model "A [MASK] sky." --json',
    ),
    "pretrain": (
        "sbert-search pretrain bert --help",
        "sbert-search pretrain bert --set data.train=a.txt --set tokenizer=words",
        "sbert-search pretrain --resume my-encoder",
    ),
    "train bi-encoder": (
        "sbert-search train bi-encoder mnrl-nli --help",
        "sbert-search train bi-encoder mnrl-nli --set data.train=a.csv --out my-model",
        "sbert-search train bi-encoder --resume my-model",
    ),
    "train cross-encoder": (
        "sbert-search train cross-encoder relevance --help",
        "sbert-search train cross-encoder nli --set data.train=a.csv --out my-judge",
        "sbert-search train cross-encoder --resume my-judge",
    ),
    "completion": (
        "sbert-search completion bash",
        "sbert-search completion zsh",
        "sbert-search completion fish",
    ),
}


def with_examples(epilog: str | None, name: str) -> str:
    """Return the end of a command's help: its epilog, if any, and its examples, not wrapped."""
    added = commands().get(name)
    examples = added.examples if added else EXAMPLES.get(name, ())
    lines = "\n".join(f"  {example}" for example in examples)
    parts = [epilog or "", f"\b\nExamples:\n{lines}" if lines else ""]
    return "\n\n".join(filter(None, parts))


CONFIG_FILE = "sbert-search.toml"  # read from the current folder
# Key in ctx.meta: names of the options that the command's table in the configuration file sets.
_IN_TABLE = "sbert_search.cli.lazy_group"
NEAR = 0.7  # lowest similarity (difflib ratio) at which a known name is suggested


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a sentence with the known names that are similar to a misspelt one, or ""."""
    import difflib  # only a misspelt name needs it

    # Leading dashes would make all options similar.
    plain = {option.lstrip("-"): option for option in known}
    near = difflib.get_close_matches(name.lstrip("-"), plain, 2, NEAR)
    return f" Did you mean {' or '.join(repr(plain[each]) for each in near)}?" if near else ""


class LazyGroup(click.Group):
    """A group of commands, to which wings may add: each is imported at its first use.

    It suggests similar commands for a misspelt one, and adds examples to the help of commands.

    Args:
        args: As for `click.Group`; the group at the top is called cli.
        homes: The ``module:attribute`` of each command, in the order of the help.
        lines: The first sentence of the help of some commands, which the help of the group shows
            without importing them.
        attrs: As for `click.Group`.
    """

    def __init__(
        self,
        *args: Any,
        homes: Mapping[str, str],
        lines: Mapping[str, str] = MappingProxyType({}),
        **attrs: Any,
    ) -> None:
        super().__init__(*args, **attrs)
        self._prefix = "" if self.name == "cli" else f"{self.name} "
        names = {name: name.rpartition(" ") for name in commands()}
        own = self._prefix.strip()
        added = {short: commands()[name] for name, (at, _, short) in names.items() if at == own}
        self._homes = {**homes, **{name: command.home for name, command in added.items()}}
        self._lines = {**lines, **{name: command.line for name, command in added.items()}}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self._homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command with its examples, or None if no command has this name."""
        if cmd_name not in self._homes:
            return None
        module, _, attribute = self._homes[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        is_group = isinstance(command, click.Group)
        if not is_group and "Examples:" not in (command.epilog or ""):
            command.epilog = with_examples(command.epilog, f"{self._prefix}{cmd_name}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; those whose first sentence is known are not imported."""
        width, rows = formatter.width - 6 - max(map(len, self._homes)), []
        for name in self._homes:
            line = self._lines.get(name)
            command = click.Command(name, help=line) if line else self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(width)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line; if it does not exist, fail and suggest a name."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}.{suggestion(name, known)}")
        found, command, rest = super().resolve_command(ctx, args)
        if command and not isinstance(command, click.Group):
            offer_options({option for param in command.params for option in param.opts})
            ctx.call_on_close(partial(offer_options, None))
            command = _configured(ctx, name, command)
        return found, command, rest


def _configured(ctx: click.Context, name: str, command: click.Command) -> click.Command:
    """Take the defaults of a command from the configuration file, if there is one.

    With ``--show-config``, return a command that prints the options of ``command``.
    """
    given = ctx.find_root().params
    path, shows = given.get("config"), given.get("show_config", False)
    if path is None and os.path.isfile(CONFIG_FILE):
        path = Path(CONFIG_FILE)
    if ctx.resilient_parsing or not (path or shows):
        return command
    from sbert_search.cli.options.config_file import ConfigFile, shown_instead  # only when needed

    if path is not None:
        contexts = [ctx]
        while contexts[0].parent is not None:
            contexts.insert(0, contexts[0].parent)
        groups = [each.command for each in contexts if isinstance(each.command, click.Group)]
        names = [*(each.info_name or "" for each in contexts[1:]), name]
        file = ConfigFile(path)
        ctx.default_map = {name: file.defaults(command, groups, names)}
        ctx.meta[_IN_TABLE] = file.own(groups, names).keys()
    return shown_instead(command, path) if shows else command


def is_for_all_commands(ctx: click.Context, name: str) -> bool:
    """Whether an option has its value from the top of the configuration file."""
    in_file = ctx.get_parameter_source(name) is ParameterSource.DEFAULT_MAP
    return in_file and name not in ctx.meta[_IN_TABLE]
