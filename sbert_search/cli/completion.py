"""`completion`: print a script that makes a shell complete sbert-search commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sbert_search.cli.console import say


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and recipes in SHELL.

    For bash and zsh, add the line below to the named file; for fish, run the command below. Then
    open a new terminal.

    \b
    bash, in ~/.bashrc:  eval "$(sbert-search completion bash)"
    zsh, in ~/.zshrc:    eval "$(sbert-search completion zsh)"
    fish:  sbert-search completion fish > ~/.config/fish/completions/sbert-search.fish
    """  # noqa: D301 (the backslash is click's)
    made = get_completion_class(shell)
    assert made is not None  # click has a class for each of these shells
    root = ctx.find_root().command
    script = made(root, {}, "sbert-search", "_SBERT_SEARCH_COMPLETE")
    say((script.source_template % script.source_vars()).strip())
