"""Hooks of the site's build: API names, the command line's reference, and no address to fetch from.

mkdocs calls the functions named ``on_...``; see https://www.mkdocs.org/user-guide/plugins/#events.
"""

from __future__ import annotations

import re
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
from mkdocs.exceptions import PluginError

from sbert_search import _modules_of_names  # noqa: PLC2701 (no public name)
from sbert_search.cli.main import cli

_REMOTE = re.compile(
    r'<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*"'
    r'|<link\b[^>]*\brel="(?:stylesheet|preload|preconnect|icon)"[^>]*\bhref="(?:https?:)?//[^"]*"'
    r'|<link\b[^>]*\bhref="(?:https?:)?//[^"]*"[^>]*\brel="(?:stylesheet|preload|preconnect|icon)"'
    r"|@import\s+url\(\s*[\"']?(?:https?:)?//",
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write what is made at build time: ``::: Name`` by its module, the commands into cli.md."""
    if page.file.src_uri == "cli.md":
        return markdown + "\n" + "\n".join(_reference(cli, "sbert-search", None))
    markdown = re.sub(r"^In a clone: .*\n", "", markdown, flags=re.MULTILINE)
    return re.sub(r"^::: (\w+)$", _described, markdown, flags=re.MULTILINE)


def on_post_build(config: Any, **_: Any) -> None:
    """Refuse a site that needs another server: it is read offline and tells nobody its readers."""
    for path in Path(config["site_dir"]).rglob("*.html"):
        if found := _REMOTE.search(path.read_text(encoding="utf-8")):
            raise PluginError(f"{path} loads a remote file: {found[0]}")


def _described(name: re.Match[str]) -> str:
    """Describe a public name under an anchor that stays when its module moves."""
    return f'<a id="{name[1].lower()}"></a>\n\n::: {_full_name(name[1])}'


def _full_name(name: str) -> str:
    """Find the module that defines a public name."""
    return f"{_modules_of_names()[name]}.{name}"


def _reference(command: click.Command, path: str, parent: click.Context | None) -> list[str]:
    """Describe a command and those below it, each under a heading of its own."""
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    depth = path.count(" ")
    lines = [f"{'#' * (depth + 1)} {path}", "", _prose(command.help or ""), ""] if depth else []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            lines += _reference(child, f"{path} {name}", context)
        return lines
    lines += ["```text", _usage(command, context, path), "```", ""]
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    if rows := [record for p in options if (record := p.get_help_record(context))]:
        lines += ["| option | effect |", "|---|---|"]
        lines += [f"| {_cell(name, code=True)} | {_cell(text)} |" for name, text in rows]
    return [*lines, "", _prose(command.epilog or ""), ""]


def _usage(command: click.Command, context: click.Context, path: str) -> str:
    return " ".join([path, *command.collect_usage_pieces(context)])


def _prose(text: str) -> str:
    r"""Turn click's help into Markdown: blocks after \b keep their lines."""
    paragraphs = re.split(r"\n\s*\n", cleandoc(text.replace("\f", "")))
    return "\n\n".join(
        "```text\n" + part.partition("\b")[2].strip("\n") + "\n```" if "\b" in part else _tags(part)
        for part in paragraphs
    )


def _cell(text: str, *, code: bool = False) -> str:
    text = " ".join(text.split())
    return "`" + text + "`" if code else _tags(text).replace("|", "\\|")


def _tags(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
