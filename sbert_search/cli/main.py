"""The entry point: load the command, run it and map errors to exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 finished with rejected rows, 130 interrupted.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click

from sbert_search.base.progress import show_notes, tell
from sbert_search.cli import streams
from sbert_search.cli.lazy_group import lazy_group, suggestion
from sbert_search.cli.streams import describe
from sbert_search.errors import ConfigError, QueryError, SbertSearchError
from sbert_search.version import __version__

INTERRUPTED = 130

_COMMANDS: dict[str, str] = {
    "demo": "sbert_search.cli.demo:demo",
    "index": "sbert_search.cli.index.group:index",
    "embed": "sbert_search.cli.embed:embed",
    "search": "sbert_search.cli.search:search",
    "serve": "sbert_search.cli.serve:serve",
    "mcp": "sbert_search.cli.serve:mcp",
    "pairs": "sbert_search.cli.pairs:pairs",
    "eval": "sbert_search.cli.evaluate.run:evaluate",
    "tokenizer": "sbert_search.cli.tokenizer:tokenizer",
    "fill-mask": "sbert_search.cli.embed:fill_mask",
    "pretrain": "sbert_search.cli.train.run:pretrain",
    "train": "sbert_search.cli.train.group:train",
    "doctor": "sbert_search.cli.doctor:doctor",
    "completion": "sbert_search.cli.doctor:completion",
}
_LINES = {  # the first sentence of a command's help, so that --help does not import the command
    "demo": "Index and search the docstrings of Python.",
    "index": "Build, update, check and tune an index.",
    "embed": "Embed the documents of SOURCE and write a Parquet file.",
    "search": "Search the index DIR for QUERY.",
    "serve": "Serve indexes and models over HTTP.",
    "mcp": "Offer search to a language model over stdin and stdout.",
    "pairs": "Find pairs of similar documents in SOURCE.",
    "eval": "Evaluate a model on tasks with known answers.",
    "tokenizer": "Train a tokenizer.",
    "fill-mask": "Predict the most probable tokens for each [MASK] of TEXT.",
    "pretrain": "Train an encoder on raw text.",
    "train": "Train a bi-encoder, a cross-encoder or a task head on labelled text.",
    "doctor": "Describe this machine and installation.",
    "completion": "Print a script that completes commands, options and recipes in SHELL.",
}


@click.group(
    cls=lazy_group("", _COMMANDS, _LINES),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 finished with rejected rows, "
    "130 interrupted. Results go to stdout; progress, notes and errors go to stderr. Options that "
    "several commands share are also read from environment variables such as SBERT_SEARCH_DEVICE. "
    "SBERT_SEARCH_DEBUG=1 prints the traceback of an unexpected error.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of default values for options.  [default: sbert-search.toml, if there is one]",
)
@click.option(
    "--show-config",
    is_flag=True,
    help="Print the options of the command, and where their values come from, instead of running "
    "it.",
)
@click.version_option(__version__, prog_name="sbert-search")
def cli(config: Path | None, show_config: bool) -> None:
    """Train sentence encoders, embed text, and build, update and search indexes."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; errors are printed to stderr."""
    show_notes()
    try:
        code = cli.main(arguments, prog_name="sbert-search", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        shown = io.StringIO()
        _with_near_options(error).show(shown)
        tell(shown.getvalue().rstrip("\n"))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as abort:
        _complain(_interrupted(abort))
        return INTERRUPTED
    except SbertSearchError as error:
        _complain(str(error))
        return 2 if isinstance(error, (ConfigError, QueryError)) else 1
    except BrokenPipeError:
        return 1  # the program that read stdout has ended, as in `... | head`
    except Exception as error:
        _complain(describe(error))
        return 1
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    streams.prepare()
    _exit(run())


def _exit(code: int) -> NoReturn:
    """End this process without freeing modules, which would delay the end of short commands.

    If other threads still run, Python ends in its usual way, which waits for them.
    """
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _with_near_options(error: click.ClickException) -> click.ClickException:
    """Suggest similar options for an unknown option; click also suggests dissimilar options."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error
    known = [name for option in error.ctx.command.params for name in option.opts if name[0] == "-"]
    hint = suggestion(error.option_name, known)
    return click.UsageError(f"No such option '{error.option_name}'.{hint}", error.ctx)


def _interrupted(abort: BaseException) -> str:
    """Return the message of an interrupt, with the notes that were added to the exception."""
    cause = abort.__cause__ or abort
    return " ".join(["interrupted.", *getattr(cause, "__notes__", [])])


def _complain(message: str) -> None:
    tell(f"sbert-search: {message}")
