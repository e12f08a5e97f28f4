"""`doctor` and `completion`: describe this machine, and make a shell complete commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import get_completion_class

from sbert_search.cli.console import emit, say, show_facts, size_text
from sbert_search.cli.options.shared import shared_options
from sbert_search.config import to_mapping

if TYPE_CHECKING:
    from sbert_search.base.machine import Diagnosis


# Training is measured on steps of 512 tokens: 16 pairs of sentences with 16 tokens each.
_STEP_TOKENS, _TEXT_TOKENS = 512, 16


@click.command()
@click.option(
    "--measure",
    "model",
    metavar="NAME|FOLDER",
    help="Measure now which precision is faster on this machine, for inference with this model "
    "and for its training.",
)
@shared_options("json")
def doctor(model: str | None, as_json: bool) -> None:
    """Describe this machine and installation.

    It prints the processor, memory, GPUs and versions; the precision that earlier measurements
    found faster; which extras are installed; the cache folders; and what would make searches and
    training faster. Nothing is measured without --measure.
    """
    from sbert_search.base.machine import diagnose

    if model is not None:
        _measure(model)
    diagnosis = diagnose()
    if as_json:
        emit(to_mapping(diagnosis))
    else:
        _show(diagnosis)


def _measure(model: str) -> None:
    """Measure precisions on a block of a model's encoder; replace the results stored earlier."""
    from sbert_search.base.progress import note
    from sbert_search.base.verdicts import measured_anew
    from sbert_search.models.encoder.precision import inference_precision, training_precision
    from sbert_search.models.encoder.weights import load_encoder
    from sbert_search.models.loading.folder import read_folder
    from sbert_search.models.loading.resolve import resolve_model

    encoder = load_encoder(read_folder(resolve_model(model).path).transformer_path)
    with measured_anew():
        found = (
            inference_precision(encoder),
            training_precision(encoder, tokens=_STEP_TOKENS, length=_TEXT_TOKENS),
        )
    if None in found:
        note(
            f"The layers of {model} are so small that the precision does not matter; fp32 is used."
        )


def _show(diagnosis: Diagnosis) -> None:
    quota = "" if diagnosis.quota is None else f", CPU quota of {diagnosis.quota:g} cores"
    free = diagnosis.available_bytes
    available = "" if free is None else f", {size_text(free)} available"
    switches = [f"{name}={value}" for name, value in diagnosis.switches.items()]
    missing = [name for name, modules in diagnosis.extras.items() if modules]
    show_facts(
        {
            "sbert-search": f"{diagnosis.code['version']} ({diagnosis.code['commit'] or 'no git'})",
            "system": f"{diagnosis.system}, Python {diagnosis.python}",
            "processor": diagnosis.cpu,
            "instructions": " ".join(diagnosis.flags) or "not known",
            "switches": " ".join(switches) or "none",
            "cores": f"{diagnosis.cores} in the machine, {diagnosis.usable} usable{quota}",
            "threads": diagnosis.threads,
            "memory": size_text(diagnosis.memory_bytes) + available,
            "GPUs": ", ".join(diagnosis.gpus) or "none",
            "libraries": ", ".join(f"{n} {v}" for n, v in diagnosis.libraries.items()),
            "extras": ", ".join(n for n in diagnosis.extras if n not in missing) or "none",
            "not installed": ", ".join(missing) or "none",
        }
    )
    say("\nMeasured:")
    for verdict in diagnosis.verdicts:
        costs = ", ".join(f"{name} {cost:,.1f} us" for name, cost in verdict.costs.items())
        say(f"  {verdict.subject}: {verdict}")
        say(f"    {verdict.work}; a token takes {costs}")
    if not diagnosis.verdicts:
        say("  nothing yet")
    say("\nCache folders, which can be removed at any time:")
    for cache in diagnosis.caches:
        say(f"  {cache.folder}: {size_text(cache.size_bytes)} in {cache.files:,} files")
    if not diagnosis.caches:
        say("  none yet")
    say("\nWhat would make it faster:")
    for line in diagnosis.advice or ("nothing that sbert-search knows of",):
        say(f"  {line}")


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
