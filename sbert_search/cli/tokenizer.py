"""`tokenizer`: train the vocabulary of a tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from sbert_search.cli.console import REJECTED_ROWS, show_report
from sbert_search.cli.lazy_group import LazyGroup
from sbert_search.cli.options.shared import options_of, refuse_typed, shared_options
from sbert_search.text.tokens.wordpiece import BATCH_ROWS, VocabularySettings, train_tokenizer

VOCABULARY = ("vocab_size", "algorithm", "alphabet_limit")  # options that settings declare


@click.group(cls=LazyGroup)
def tokenizer() -> None:
    """Train a tokenizer."""


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="New folder for the tokenizer."
)
@options_of(VocabularySettings, *VOCABULARY)
@click.option("--cased", is_flag=True, help="Keep upper case and accents.")
@click.option(
    "--strip-accents/--keep-accents",
    default=None,
    help="Whether accents are removed.  [default: strip, or keep with --cased]",
)
@click.option(
    "--split-cjk/--join-cjk",
    default=True,
    help="Whether each CJK ideograph is a word.  [default: split]",
)
@click.option(
    "--extend",
    type=click.Path(exists=True, path_type=Path),
    help="Vocabulary to extend (a folder or vocab.txt); its ids and rules stay.",
)
@click.option("--text-field", help="Field that holds the text.  [default: detected]")
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    help="Number of processes that count words.  [default: number of cores]",
)
@shared_options("on-error", "quiet", "json")
@click.pass_context
def train(
    ctx: click.Context,
    /,
    sources: tuple[str, ...],
    out: Path,
    cased: bool,
    strip_accents: bool | None,
    split_cjk: bool,
    extend: Path | None,
    text_field: str | None,
    workers: int | None,
    on_error: Literal["stop", "skip"],
    as_json: bool,
    **_: object,
) -> int:
    """Train a WordPiece vocabulary on the documents of SOURCE and save it as a tokenizer.

    The folder loads in transformers (BertTokenizerFast) and in all commands that take a tokenizer.
    """
    if extend:
        refuse_typed(ctx, {"cased", "strip_accents", "split_cjk"}, "with --extend")
    vocabulary = {name: ctx.params[name] for name in VOCABULARY}
    if vocabulary["algorithm"] == "bpe":
        refuse_typed(ctx, {"workers"}, "with --algorithm bpe")
    from sbert_search.base.processor import usable_cores
    from sbert_search.text.documents import CorpusReader, FieldNames
    from sbert_search.text.tokens.words import WordRules

    fields = FieldNames(text=text_field)
    reader = CorpusReader(sources, fields=fields, on_error=on_error, batch_rows=BATCH_ROWS)
    rules = WordRules(lowercase=not cased, strip_accents=strip_accents, split_cjk=split_cjk)
    settings = VocabularySettings(rules=rules, extend=extend, **vocabulary)
    report = train_tokenizer(reader, out, settings, workers=workers or usable_cores())
    show_report(report, as_json=as_json)
    return REJECTED_ROWS if report.rejected else 0
