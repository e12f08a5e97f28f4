"""Learn a WordPiece vocabulary, from scratch or by extending an existing vocabulary.

A piece is an entry of the vocabulary: a special token, a character, a word or a part of a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.trainers import WordPieceTrainer

from sbert_search.errors import ConfigError, CorpusError
from sbert_search.tokens.vocabulary import CONTINUATION, SPECIAL_TOKENS, UNKNOWN
from sbert_search.tokens.wordpiece.merge_candidates import MIN_COUNT
from sbert_search.tokens.wordpiece.merges import Segmentation, grow_vocabulary
from sbert_search.tokens.words import MAX_WORD_CHARS, WordRules


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
