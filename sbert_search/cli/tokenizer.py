"""`sbert-search tokenizer`: learn a vocabulary."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from sbert_search.cli.console import REJECTED_ROWS, emit, show_facts
from sbert_search.cli.shared_options import shared_options


@click.group()
def tokenizer() -> None:
    """Vocabularies of your own."""


@tokenizer.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--vocab-size", type=int, default=30_522, show_default=True, help="Pieces wanted.")
@click.option(
    "--algorithm",
    type=click.Choice(["wordpiece", "bpe"]),
    default="wordpiece",
    show_default=True,
    help="Merge by likelihood gain, or by count.",
)
@click.option("--alphabet-limit", type=int, default=1_000, show_default=True)
@click.option("--cased", is_flag=True, help="Keep capitals, and accents with them.")
@click.option("--strip-accents/--keep-accents", default=None, help="Default: strip if uncased.")
@click.option("--split-cjk/--join-cjk", default=True, help="Default: each ideograph is a word.")
@click.option(
    "--extend",
    type=click.Path(exists=True, path_type=Path),
    help="Add to this vocabulary (a folder or vocab.txt); its ids and rules stay.",
)
@click.option("--text-field", help="Name of the field to read, where it is not to be detected.")
@click.option(
    "--workers", type=click.IntRange(1, 1024), help="Processes that count; default: cores."
)
@shared_options("on-error", "quiet", "json")
def train(sources: tuple[str, ...], out: Path, as_json: bool, **options: Any) -> int:
    """Learn a WordPiece vocabulary from the documents of SOURCE and save it as a tokenizer.

    The folder loads in transformers (BertTokenizerFast) and in every command here.
    """
    from sbert_search.corpus.documents import CorpusReader, FieldNames
    from sbert_search.runtime.cores import usable_cores
    from sbert_search.tokens.training import BATCH_ROWS, VocabularySettings, train_tokenizer
    from sbert_search.tokens.words import WordRules

    reader = CorpusReader(
        sources,
        fields=FieldNames(text=options["text_field"]),
        on_error=options["on_error"],
        batch_rows=BATCH_ROWS,
    )
    rules = WordRules(
        lowercase=not options["cased"],
        strip_accents=options["strip_accents"],
        split_cjk=options["split_cjk"],
    )
    settings = VocabularySettings(
        vocab_size=options["vocab_size"],
        algorithm=options["algorithm"],
        alphabet_limit=options["alphabet_limit"],
        rules=rules,
        extend=options["extend"],
    )
    done = train_tokenizer(reader, out, settings, workers=options["workers"] or usable_cores())
    facts = dataclasses.asdict(done)
    emit(facts) if as_json else show_facts(facts)
    return REJECTED_ROWS if done.rejected else 0
