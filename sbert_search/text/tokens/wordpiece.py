"""Learn a WordPiece vocabulary from documents, and save it to a folder.

A piece is an entry of the vocabulary: a special token, a character, a word or a part of a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from sbert_search.base.progress import Advance, note, progress
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.formats.rows import RejectLog
from sbert_search.text.tokens.merges import MIN_COUNT, Segmentation, grow_vocabulary
from sbert_search.text.tokens.vocabulary import (
    CONTINUATION,
    SPECIAL_TOKENS,
    UNKNOWN,
    check_new,
    read_vocabulary,
    save_vocabulary,
)
from sbert_search.text.tokens.words import MAX_WORD_CHARS, WordRules, count_words

if TYPE_CHECKING:
    from sbert_search.text.documents import CorpusReader

_NO_WORDS = "There are no words in this text to learn a vocabulary from."


def learn_wordpiece(
    words: Mapping[str, int],
    vocab_size: int,
    *,
    vocabulary: Sequence[str] = SPECIAL_TOKENS,
    alphabet_limit: int = 1_000,
    advance: Callable[[int], None] = lambda n: None,
) -> list[str]:
    """Learn a vocabulary from word counts by merging pairs of pieces with the largest gain.

    See `merges.grow_vocabulary`. Returns the pieces in the order of ids: ``vocabulary``,
    characters, then merged pieces, fewer than ``vocab_size`` if there are too few words. A word
    with a character beyond ``alphabet_limit`` becomes [UNK].
    """
    old = set(vocabulary)
    letters = [piece for piece in alphabet(words, alphabet_limit) if piece not in old]
    start = [*vocabulary, *letters]
    if vocab_size < len(start):
        raise ConfigError(
            f"vocab_size is {vocab_size:,}, but {len(vocabulary):,} special tokens and old pieces "
            f"and {len(letters):,} single characters of this text come first. Ask for at least "
            f"{len(start):,}, or lower alphabet_limit."
        )
    segmentation = _longest_match(words, start)
    return start + grow_vocabulary(segmentation, start, vocab_size - len(start), advance=advance)


def learn_bpe(
    batches: Iterable[Sequence[str]], rules: WordRules, vocab_size: int, alphabet_limit: int
) -> list[str]:
    """Learn a vocabulary by merging the most frequent pair, with `WordPieceTrainer`."""
    tokenizer = Tokenizer(WordPiece({}, unk_token=UNKNOWN))
    tokenizer.normalizer = rules.normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        special_tokens=list(SPECIAL_TOKENS),
        limit_alphabet=alphabet_limit,
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches, trainer)
    ids = tokenizer.get_vocab()
    if len(ids) == len(SPECIAL_TOKENS):
        raise CorpusError(_NO_WORDS)
    if len(ids) > vocab_size:
        raise ConfigError(
            f"vocab_size is {vocab_size:,}, below the {len(ids):,} special tokens and single "
            "characters of this text; raise it, or lower alphabet_limit."
        )
    return sorted(ids, key=lambda piece: ids[piece])


def alphabet(words: Mapping[str, int], limit: int) -> list[str]:
    """List the pieces of one character: first those that start a word, then those with prefix ##.

    Only the ``limit`` most frequent characters are kept. A character that is always a word by
    itself (punctuation, CJK) gets no piece with ##.
    """
    if not words:
        raise CorpusError(_NO_WORDS)
    counts: Counter[str] = Counter()
    joined: set[str] = set()
    for word, count in words.items():
        for char in word:
            counts[char] += count
        if len(word) > 1:
            joined.update(word)
    kept = sorted(sorted(counts, key=lambda char: (-counts[char], char))[:limit])
    return kept + [CONTINUATION + char for char in kept if char in joined]


def _longest_match(words: Mapping[str, int], pieces: Sequence[str]) -> Segmentation:
    """Split all words into pieces by longest match first; words that become [UNK] are left out."""
    ids = {piece: piece_id for piece_id, piece in enumerate(pieces)}
    model = WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=MAX_WORD_CHARS)
    piece_ids: list[int] = []
    lengths, counts = [], []
    for word, count in words.items():
        word_ids = [token.id for token in model.tokenize(word)]
        if word_ids != [ids[UNKNOWN]]:
            piece_ids += word_ids
            lengths.append(len(word_ids))
            counts.append(count)
    return Segmentation(
        np.array(piece_ids, np.int32),
        np.array(lengths, np.int64),
        np.array(counts, np.int64),
        len(pieces),
    )


Algorithm = Literal["wordpiece", "bpe"]

BATCH_ROWS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularySettings:
    """Settings for learning a vocabulary.

    Attributes:
        vocab_size: Size of the vocabulary. Special tokens and single characters are included.
        algorithm: Order of merges: wordpiece by likelihood gain, bpe by count. With either
            vocabulary, words are encoded by longest match first.
        alphabet_limit: Maximum number of characters in the vocabulary, most frequent first.
        rules: How texts are split into words; with ``extend``, the rules of the old vocabulary.
        extend: Folder or vocab.txt of an old vocabulary, whose ids do not change.
    """

    vocab_size: Annotated[int, Bounds(len(SPECIAL_TOKENS) + 1, 10_000_000)] = 30_522
    algorithm: Algorithm = "wordpiece"
    alphabet_limit: Annotated[int, Bounds(1)] = 1_000
    rules: WordRules = field(default_factory=WordRules)
    extend: Path | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.extend is not None and self.algorithm != "wordpiece":
            raise ConfigError("Only the algorithm wordpiece can extend a vocabulary.")


@dataclass(frozen=True, slots=True)
class TrainedVocabulary:
    """The result of `train_tokenizer`."""

    out: Path
    vocab_size: int  # below the target if the text has no more pairs to merge
    documents: int
    rejected: int  # input rows that could not be used
    rejects_file: Path | None


def train_tokenizer(
    reader: CorpusReader, out: Path, settings: VocabularySettings, *, workers: int = 1
) -> TrainedVocabulary:
    """Learn a vocabulary from the titles and texts of documents and save it to a new folder.

    Words are counted in ``workers`` processes. `BATCH_ROWS` is a good size for the reader's
    batches.
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
        note(f"{sum(words.values()):,} words, {len(words):,} distinct.")
        with progress("Merging", settings.vocab_size - len(old), "pieces") as advance:
            vocabulary = learn_wordpiece(
                words,
                settings.vocab_size,
                vocabulary=old,
                alphabet_limit=settings.alphabet_limit,
                advance=advance,
            )
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


def _texts(reader: CorpusReader, rejects: RejectLog, advance: Advance) -> Iterator[list[str]]:
    for batch in reader.batches():
        rejects.append(batch.rejects)
        yield [document.full_text for document in batch.documents]
        advance(len(batch.documents) + len(batch.rejects))
