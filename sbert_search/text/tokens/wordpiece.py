"""Learn a WordPiece vocabulary from documents, and save it to a folder.

A piece is an entry of the vocabulary: a special token, a character, a word or a part of a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from sbert_search.base.progress import Advance, note, progress
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.text.documents import CorpusReader
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


def learn_wordpiece(
    words: Mapping[str, int],
    vocab_size: int,
    *,
    vocabulary: Sequence[str] = SPECIAL_TOKENS,
    alphabet_limit: int = 1_000,
    advance: Callable[[int], None] = lambda n: None,
) -> list[str]:
    """Learn a vocabulary from word counts by merging pairs of pieces with the largest gain.

    The gain is the increase in likelihood that `merges.grow_vocabulary` describes. First, the
    characters that ``vocabulary`` lacks are added as pieces. Then the words are split into pieces,
    and adjacent pieces are merged into new pieces. The ids of ``vocabulary`` do not change.

    Args:
        words: Number of occurrences of each word.
        vocab_size: Target number of pieces; the result is smaller if there are too few words.
        vocabulary: Initial pieces, in the order of ids.
        alphabet_limit: Maximum number of different characters to include. A word with any other
            character becomes [UNK].
        advance: Called with 1 for each new piece.

    Returns:
        The pieces in the order of ids: ``vocabulary``, characters, then merged pieces in the order
        of their merges.

    Raises:
        CorpusError: There are no words.
        ConfigError: ``vocab_size`` is too small for ``vocabulary`` and the characters.
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
    """Learn a vocabulary by merging the most frequent pair, with the `tokenizers` library.

    The library's `WordPieceTrainer` implements byte-pair encoding over characters. A piece that
    does not start a word has the prefix ##.

    Args:
        batches: Batches of texts.
        rules: How to split a text into words.
        vocab_size: Target number of pieces.
        alphabet_limit: Maximum number of different characters to include.

    Returns:
        The pieces in the order of ids: special tokens, characters, merged pieces.

    Raises:
        CorpusError: There are no words.
        ConfigError: The special tokens and the alphabet do not fit into ``vocab_size``.
    """
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
        raise CorpusError("There are no words in this text to learn a vocabulary from.")
    if len(ids) > vocab_size:
        raise ConfigError(
            f"vocab_size is {vocab_size:,}, below the {len(ids):,} special tokens and single "
            "characters of this text; raise it, or lower alphabet_limit."
        )
    return sorted(ids, key=lambda piece: ids[piece])


def alphabet(words: Mapping[str, int], limit: int) -> list[str]:
    """List the pieces of one character: first those that start a word, then those with prefix ##.

    Every character that occurs in a word of several characters gets both pieces, so that each word
    of known characters can be split. A character that is always a word by itself (punctuation, CJK)
    gets only the piece for the start of a word.

    Args:
        words: Number of occurrences of each word.
        limit: Maximum number of different characters; the most frequent ones are kept.

    Raises:
        CorpusError: There are no words.
    """
    if not words:
        raise CorpusError("There are no words in this text to learn a vocabulary from.")
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
