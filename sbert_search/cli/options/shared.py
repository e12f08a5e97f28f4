"""The options that several commands share.

The environment variable ``SBERT_SEARCH_<OPTION>`` can set each of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, get_args

import click
from click.core import ParameterSource

from sbert_search.base.options import EngineName, Precision, device_names
from sbert_search.base.progress import set_quiet, show_notes
from sbert_search.config import MAX_SEED
from sbert_search.declared import Option, declared
from sbert_search.errors import ConfigError

if TYPE_CHECKING:
    from click.parser import _OptionParser

    from sbert_search.embed.arguments import EmbedderOptions

F = TypeVar("F", bound=Callable[..., object])


class Decorator(Protocol):
    """Adds an option, an argument or several of them to the function of a command."""

    def __call__(self, function: F, /) -> F:
        """Return the function, with the options added."""


def joined(*options: Decorator) -> Decorator:
    """Return a decorator that adds several options to a command, in the order of the help."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


index_folder: Decorator = click.argument("path", metavar="DIR", type=click.Path(path_type=Path))


def device(text: str) -> str:
    """Check that a device name is well formed; whether the device exists is checked later."""
    try:
        device_names(text)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error
    return text


def size(text: str) -> int:
    """Read a size such as 512M, 1.5G or a plain number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text.strip().upper())
    n_bytes = float(match[1]) * 1024 ** " KMGT".index(match[2] or " ") if match else 0.0
    if not 1 <= n_bytes < 2**63:
        shown = text if len(text) < 40 else f"{text[:36]}..."
        raise click.BadParameter(f"{shown!r} is not a size; write 2G, 512M or a number of bytes.")
    return int(n_bytes)


def _limit_memory(ctx: click.Context, param: click.Parameter, limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        from sbert_search.base.memory import set_memory_limit

        ctx.call_on_close(partial(set_memory_limit, set_memory_limit(limit_bytes)))


class Finite(click.FloatRange):
    """A finite number in an optional range; click's FloatRange alone accepts NaN and infinity."""

    def __init__(
        self, min: float | None = None, max: float | None = None, min_open: bool = False
    ) -> None:
        super().__init__(min, max, min_open)
        self.name = "float" if min is max is None else self.name

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a number from the text of the option; fail if it is out of range or not finite."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{str(value)[:40]!r} is not finite.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is self.max is None else super()._describe_range()


def token_count(text: str) -> int | str:
    """Read a number of tokens, or auto."""
    if text != "auto" and (not text.isdecimal() or int(text) < 2):
        raise click.BadParameter(
            f"{text!r} is not a number of tokens; write auto or a number from 2."
        )
    return text if text == "auto" else int(text)


PRECISIONS = get_args(Precision)
HEAD_PRECISIONS = PRECISIONS[:4]  # precisions of models with a task head
TRAINING_PRECISIONS = PRECISIONS[:3]


class NarrowPrecision(click.Option):
    """The option ``--precision`` of a command that does not compute in all `PRECISIONS`.

    One at the top of a configuration file or in the environment is meant for all commands; it is
    ignored here if this command cannot compute in it.
    """

    def is_for_others(self, value: object) -> bool:
        """Whether ``value`` is a precision in which this command cannot compute."""
        own = self.type.choices if isinstance(self.type, click.Choice) else ()
        return value in PRECISIONS and value not in own

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the precision in the environment, or None if this command cannot use it."""
        value = super().resolve_envvar_value(ctx)
        return None if self.is_for_others(value) else value


def choice(name: str, *values: str, help: str, cls: type[click.Option] = click.Option) -> Decorator:
    """Make an option that takes one of several values; the first is the default."""
    return click.option(
        f"--{name}",
        cls=cls,
        type=click.Choice(values),
        default=values[0],
        show_default=True,
        envvar=_variable(name),
        help=help,
    )


def options_of(
    settings: type,
    *names: str,
    unset: str | None = None,
    holds: bool = True,
    multiple: bool = False,
    variables: bool = False,
    flags: Mapping[str, str] = MappingProxyType({}),
    type: click.Path | None = None,
) -> Decorator:
    """Give a command options for fields of a settings dataclass, in the order of the help.

    Args:
        settings: The dataclass.
        names: The fields, which are also the names of the parameters.
        unset: What holds without the option; "": the help does not say. None: the default of the
            field, which is then the value of the parameter.
        holds: Whether the default of a field is the value of the parameter; if not, as where an
            index or a recipe may have another value, the parameter is None.
        multiple: Whether the options may be repeated.
        variables: Whether environment variables set the options, too.
        flags: Flags that do not follow from the field's name, such as ``{"k": "-k"}``.
        type: How a value is read and checked, such as a path; None: as the field declares.
    """
    fields, options = declared(settings), []
    for name in names:
        flag, field = flags.get(name, f"--{name.replace('_', '-')}"), fields[name]
        more: dict[str, Any] = {"is_flag": True} if field.kind is bool else _value_of(field)
        shown = unset
        if unset is None and field.kind is not bool and field.default is not None:
            if holds:
                more |= {"default": field.default, "show_default": True}
            else:
                shown = str(field.default)
        help = f"{field.help} Repeat it for several." if multiple else field.help
        help += f"  [default: {shown}]" if shown else ""
        more |= {"help": help, "multiple": multiple} | ({"type": type} if type else {})
        more["envvar"] = _variable(flag.lstrip("-")) if variables else None
        if str(field.bounds.metavar).endswith(",..."):
            more["cls"] = ListOption
        options.append(click.option(flag, name, **more))
    return joined(*options)


def _value_of(field: Option) -> dict[str, object]:
    """Return the type of an option, and what its help calls the value."""
    bounds = field.bounds
    kind: click.ParamType[object] = click.STRING
    if field.choices:
        kind = click.Choice(field.choices)
    elif field.kind is int:
        kind = click.IntRange(cast(int | None, bounds.low), cast(int | None, bounds.high))
    elif field.kind is float:
        low = bounds.above if bounds.low is None else bounds.low
        kind = Finite(None if low == -math.inf else low, bounds.high, min_open=bounds.low is None)
    return {"type": kind, "metavar": bounds.metavar}


def _variable(name: str) -> str:
    return f"SBERT_SEARCH_{name.replace('-', '_').upper()}"


def _of_reading(name: str, *, unset: str | None = None, holds: bool = True) -> Decorator:
    def decorate(function: F) -> F:
        from sbert_search.index.building.settings import ReadSettings  # `search` needs none of it

        add = options_of(ReadSettings, name, unset=unset, holds=holds, variables=True)
        return add(function)

    return decorate


def _obey_quiet(ctx: click.Context, param: click.Parameter, quiet: bool) -> None:
    set_quiet(quiet)


def _obey_verbose(ctx: click.Context, param: click.Parameter, verbose: bool) -> None:
    show_notes(details=verbose)


_SHARED: dict[str, Decorator] = {
    "model": click.option(
        "--model",
        envvar=_variable("model"),
        metavar="NAME|FOLDER",
        help="Name or folder of a sentence-transformers model, or 'hashing' to compare words only.",
    ),
    "device": click.option(
        "--device",
        type=device,
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda[:N][,...]|mps",
        envvar=_variable("device"),
        help="Device of the model; auto: cuda, else mps, else cpu.",
    ),
    "engine": choice("engine", *get_args(EngineName), help="Software that runs the model."),
    "precision": choice(
        "precision",
        *PRECISIONS,
        help="Number format of the model's computation; auto: that of the index, otherwise the "
        "faster of fp32 and bf16, which is measured once on a CPU. int8, on a CPU, is faster and "
        "less exact; fastest: also measure int8.",
    ),
    "calibrate": click.option(
        "--calibrate",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar=_variable("calibrate"),
        help="With int8: file with a text in each line, of the kind that will be embedded.  "
        "[default: varied texts of this package]",
    ),
    "batch-tokens": click.option(
        "--batch-tokens",
        type=token_count,
        default="auto",
        show_default=True,
        metavar="auto|N",
        envvar=_variable("batch-tokens"),
        help="Maximum number of tokens in a batch; auto: the number that was the fastest in an "
        "earlier run; with add and upsert on a CPU, that of the build.",
    ),
    "on-truncate": _of_reading(
        "on_truncate", unset="chunk in a new index; in an update, as in the build; else warn"
    ),
    "chunk-tokens": _of_reading("chunk_tokens", unset="what the model reads"),
    "chunk-overlap": _of_reading("chunk_overlap", holds=False),
    "on-error": _of_reading("on_error"),
    "memory": click.option(
        "--memory",
        type=size,
        expose_value=False,
        callback=_limit_memory,
        metavar="SIZE",
        envvar=_variable("memory"),
        help="Memory limit of the process, such as 2G; mapped files do not count.  [default: none]",
    ),
    "wait": click.option(
        "--wait",
        "wait_s",
        type=Finite(min=0),
        default=0.0,
        show_default=True,
        metavar="SECONDS",
        envvar=_variable("wait"),
        help="Seconds to wait for another process that is writing to the index.",
    ),
    "seed": click.option(
        "--seed",
        type=click.IntRange(0, MAX_SEED),
        default=0,
        show_default=True,
        envvar=_variable("seed"),
        help="Seed of the random numbers.",
    ),
    "allow-inexact": click.option(
        "--allow-inexact",
        is_flag=True,
        envvar=_variable("allow-inexact"),
        help="Accept small numerical differences: vectors may differ from those in the index, and "
        "a resumed run may differ from an uninterrupted run.",
    ),
    "quiet": click.option(
        "--quiet",
        "-q",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_obey_quiet,
        envvar=_variable("quiet"),
        help="Print no progress and no notes to stderr, only warnings, such as of lost values, and "
        "errors.",
    ),
    "verbose": click.option(
        "--verbose",
        "-v",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_obey_verbose,
        envvar=_variable("verbose"),
        help="Print more notes to stderr, such as the model of a search.",
    ),
    "json": click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar=_variable("json"),
        help="Print one JSON object per line on stdout.",
    ),
}


SHARED_NAMES = frozenset(_SHARED)
CHUNKING = ("on-truncate", "chunk-tokens", "chunk-overlap")  # options for long texts


def shared_options(*names: str) -> Decorator:
    """Give a command some of the shared options, in this order; with ``quiet``, ``verbose`` too."""
    every = [n for name in names for n in (("quiet", "verbose") if name == "quiet" else (name,))]
    return joined(*(_SHARED[name] for name in every))


def narrow_precision(*values: str) -> Decorator:
    """Give a command an option ``--precision`` that takes only some of `PRECISIONS`."""
    return choice(
        "precision",
        *values,
        cls=NarrowPrecision,
        help="Number format of the model's computation; auto: the faster of fp32 and bf16, which "
        "is measured once on a CPU.",
    )


embedder_options = shared_options("model", "device", "engine", "precision", "calibrate")

document_prompt: Decorator = click.option(
    "--document-prompt",
    metavar="TEXT",
    help='Text to put before each document, such as "passage: " for E5.  '
    "[default: that of the model or index]",
)
prompt_options = joined(
    click.option(
        "--query-prompt",
        metavar="TEXT",
        help='Text to put before each query, such as "query: " for E5.  '
        "[default: that of the model or index]",
    ),
    document_prompt,
)
_PROMPTS = {"query_prompt": "query", "document_prompt": "document"}  # by parameter: the task


class ListOption(click.Option):
    """An option whose values are separated by commas; it may also be repeated."""

    def add_to_parser(self, parser: _OptionParser, ctx: click.Context) -> None:
        """Let the parser keep all values, not only the last."""
        self.multiple = True
        super().add_to_parser(parser, ctx)
        self.multiple = False

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, click.Parameter]
    ) -> tuple[object, ParameterSource]:
        """Return all values of the command line as one text, separated by commas."""
        value, source = super().consume_value(ctx, opts)
        joined = ",".join(value) if source == ParameterSource.COMMANDLINE else value
        return joined, source


class ModelOfIndex(click.Option):
    """The option ``--model`` of a command that opens an index.

    Since the index names its own model, a model at the top of a configuration file does not set
    this option.
    """


_model_of_index = click.option(
    "--model",
    cls=ModelOfIndex,
    envvar=_variable("model"),
    metavar="NAME|FOLDER",
    help="Name or folder of the model that built the index.  [default: that in the index]",
)


index_embedder_options = joined(
    _model_of_index, shared_options("device", "engine", "precision", "calibrate")
)
"""The options of `embedder_options` for a command that opens the model of an index."""

query_model_option = click.option(
    "--query-model",
    metavar="NAME",
    help="Query model of the index that embeds queries; see `index query-model`.",
)


def typed(ctx: click.Context) -> set[str]:
    """Return the names of the options that are on the command line."""
    line = ParameterSource.COMMANDLINE
    return {name for name in ctx.params if ctx.get_parameter_source(name) is line}


def refuse_typed(ctx: click.Context, names: Collection[str], where: str) -> None:
    """Refuse options on the command line that have no effect ``where``, such as "with --like"."""
    found = typed(ctx).intersection(names)
    for option in ctx.command.params:
        if option.name in found:
            name = option.opts[0]
            if ctx.params[option.name] is False and option.secondary_opts:
                name = option.secondary_opts[0]
            raise click.UsageError(f"{name} has no effect {where}; leave it out.")


def given(ctx: click.Context) -> set[str]:
    """Return the options that the command line, the environment or the configuration file sets."""
    default = ParameterSource.DEFAULT
    return {name for name in ctx.params if ctx.get_parameter_source(name) is not default}


def model_options(ctx: click.Context) -> EmbedderOptions:
    """Return the options for opening a model, such as its device."""
    from sbert_search.embed.arguments import EmbedderOptions

    values = {name: ctx.params.get(name) for name in EmbedderOptions.__annotations__}
    prompts = {task: ctx.params.get(name) for name, task in _PROMPTS.items()}
    values["prompts"] = {task: text for task, text in prompts.items() if text is not None} or None
    return cast(EmbedderOptions, {name: v for name, v in values.items() if v is not None})


def typed_model_options(ctx: click.Context) -> EmbedderOptions:
    """Return the options for opening a model that are on the command line."""
    on_line = typed(ctx)
    if on_line & _PROMPTS.keys():
        on_line.add("prompts")
    chosen = {name: value for name, value in model_options(ctx).items() if name in on_line}
    return cast("EmbedderOptions", chosen)
