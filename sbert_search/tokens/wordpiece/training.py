"""Learn a vocabulary from documents and save it to a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sbert_search.base.progress import Advance, note, progress
from sbert_search.corpus.documents import CorpusReader
from sbert_search.corpus.rejects import RejectLog
from sbert_search.errors import ConfigError
from sbert_search.tokens.vocabulary import (
    SPECIAL_TOKENS,
    check_new,
    read_vocabulary,
    save_vocabulary,
)
from sbert_search.tokens.wordpiece.learning import learn_bpe, learn_wordpiece
from sbert_search.tokens.words import WordRules, count_words

Algorithm = Literal["wordpiece", "bpe"]

BATCH_ROWS = 4096
MAX_PIECES = 10_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularySettings:
    """Settings for learning a vocabulary.

    Attributes:
        vocab_size: Target number of pieces (vocabulary entries), special tokens and single
            characters included.
        algorithm: ``wordpiece`` merges the pair of pieces with the largest gain in likelihood.
            ``bpe`` merges the most frequent pair, with the `tokenizers` library. With either
            vocabulary, words are encoded by longest match first.
        alphabet_limit: Maximum number of different characters to include.
        rules: How to split text into words. With ``extend``, the rules of the old vocabulary apply
            instead.
        extend: Folder or vocab.txt of an old vocabulary to extend; its ids do not change.
    """

    vocab_size: int = 30_522
    algorithm: Algorithm = "wordpiece"
    alphabet_limit: int = 1_000
    rules: WordRules = field(default_factory=WordRules)
    extend: Path | None = None

    def __post_init__(self) -> None:
        if self.vocab_size <= len(SPECIAL_TOKENS):
            raise ConfigError(
                f"vocab_size is {self.vocab_size}; the special tokens alone take "
                f"{len(SPECIAL_TOKENS)}."
            )
        if self.vocab_size > MAX_PIECES:
            raise ConfigError(
                f"vocab_size is {self.vocab_size:,}; a vocabulary has at most {MAX_PIECES:,}."
            )
        if self.alphabet_limit < 1:
            raise ConfigError(f"alphabet_limit is {self.alphabet_limit}; it must be at least 1.")
        if self.extend is not None and self.algorithm != "wordpiece":
            raise ConfigError("Only the algorithm wordpiece can extend a vocabulary.")


@dataclass(frozen=True, slots=True)
class TrainedVocabulary:
    """The result of `train_tokenizer`.

    Attributes:
        out: Folder of the vocabulary.
        vocab_size: Number of pieces; below the target if the text has no more pairs to merge.
        documents: Number of documents read.
        rejected: Number of input rows that could not be used.
        rejects_file: File that lists the rejected rows; None if there are none.
    """

    out: Path
    vocab_size: int
    documents: int
    rejected: int
    rejects_file: Path | None


def train_tokenizer(
    reader: CorpusReader, out: Path, settings: VocabularySettings, *, workers: int = 1
) -> TrainedVocabulary:
    """Learn a vocabulary from the titles and texts of documents and save it to a new folder.

    Args:
        reader: The documents; `BATCH_ROWS` is a good number of rows for its batches.
        out: A folder that does not exist yet.
        settings: Settings of the vocabulary.
        workers: Number of processes that count words.

    Raises:
        ConfigError: ``out`` exists, or ``vocab_size`` is too small for the alphabet.
        CorpusError: A source cannot be read, or has no words.
        ModelError: The vocabulary to extend cannot be used.
        TrainingError: A process that counts words was killed.
    """
    check_new(out)
    if settings.extend is None:
        old, rules = list(SPECIAL_TOKENS), settings.rules
    else:
        old, rules = read_vocabulary(settings.extend)
    survey = reader.survey()
    rejects = RejectLog(out)
    with progress("Reading", survey.rows) as advance:
        texts = _texts(reader, rejects, advance)
        if settings.algorithm == "bpe":
            vocabulary = learn_bpe(texts, rules, settings.vocab_size, settings.alphabet_limit)
        else:
            words = count_words(texts, rules, workers=workers)
    if settings.algorithm == "wordpiece":
        vocabulary = _merged(words, old, settings)
    if len(vocabulary) < settings.vocab_size:
        gain = "" if settings.algorithm == "bpe" else " and raises the likelihood"
        note(
            f"{len(vocabulary):,} pieces instead of {settings.vocab_size:,}: the text has no "
            f"other pair of pieces that occurs twice{gain}."
        )
    save_vocabulary(out, vocabulary, rules)
    rejects.finish(was_read=reader.reads(rejects.path))
    return TrainedVocabulary(
        out,
        len(vocabulary),
        documents=survey.rows - survey.rejected,
        rejected=survey.rejected,
        rejects_file=rejects.path if survey.rejected else None,
    )


def _merged(words: dict[str, int], old: list[str], settings: VocabularySettings) -> list[str]:
    note(f"{sum(words.values()):,} words, {len(words):,} distinct.")
    with progress("Merging", settings.vocab_size - len(old), "pieces") as advance:
        return learn_wordpiece(
            words,
            settings.vocab_size,
            vocabulary=old,
            alphabet_limit=settings.alphabet_limit,
            advance=advance,
        )


def _texts(reader: CorpusReader, rejects: RejectLog, advance: Advance) -> Iterator[list[str]]:
    for batch in reader.batches():
        rejects.append(batch.rejects)
        yield [document.full_text for document in batch.documents]
        advance(len(batch.documents) + len(batch.rejects))
