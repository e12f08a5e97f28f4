"""Split text into words by BERT's rules, and count the words of a corpus."""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from sbert_search.base.progress import note
from sbert_search.errors import TrainingError

if TYPE_CHECKING:
    from concurrent.futures import Future

MAX_WORD_CHARS = 100  # BERT turns a longer word into [UNK]
MAX_DISTINCT_WORDS = 10_000_000  # about 1 GiB of words and counts


class WordRules(NamedTuple):
    """BERT's rules: a text is cleaned, normalised, and split at white space and punctuation."""

    lowercase: bool = True  # False for a cased vocabulary
    strip_accents: bool | None = None  # None: only if ``lowercase`` is true
    split_cjk: bool = True  # every CJK ideograph is a word by itself

    def normalizer(self) -> normalizers.BertNormalizer:
        """Make the normaliser of the `tokenizers` library."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_cjk,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )


def count_words(
    batches: Iterable[Sequence[str]], rules: WordRules, *, workers: int = 1
) -> dict[str, int]:
    """Count the words of a corpus in several processes, whose number does not change the result.

    Batches are read only as fast as they are counted. Words longer than `MAX_WORD_CHARS` are left
    out. Above `MAX_DISTINCT_WORDS`, at least the rarest half is dropped, with a note: words so rare
    would not get into a vocabulary anyway.
    """
    total: Counter[str] = Counter()
    for counts in _counted(batches, rules, workers):
        total.update(counts)
        if len(total) > MAX_DISTINCT_WORDS:
            total = _without_rarest(total, MAX_DISTINCT_WORDS // 2)
    return dict(total)


def count_batch(texts: Sequence[str], rules: WordRules) -> dict[str, int]:
    """Count the words of some texts."""
    strings: Counter[str] = Counter()
    for text in texts:
        # BERT's rules look at single characters, so equal strings between blanks give equal words.
        # Count the strings first, then normalise each distinct string once. The pre-tokenizer
        # below splits the strings at other white space and at punctuation.
        strings.update(text.translate(_BLANKS).split(" "))
    normalize = rules.normalizer().normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for string, count in strings.items():
        for word, _ in split(normalize(string)):
            if len(word) <= MAX_WORD_CHARS:
                words[word] += count
    return dict(words)


_BLANKS = str.maketrans("\t\n\r", "   ")


def _counted(
    batches: Iterable[Sequence[str]], rules: WordRules, workers: int
) -> Iterator[dict[str, int]]:
    """Yield the word counts of each batch, in order; few batches are in memory at a time."""
    if workers == 1:
        for texts in batches:
            yield count_batch(texts, rules)
        return
    import multiprocessing  # imported late: code that only needs `WordRules` loads faster
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=_ignore_interrupts
        ) as pool:
            pending: deque[Future[dict[str, int]]] = deque()
            for texts in batches:
                pending.append(pool.submit(count_batch, texts, rules))
                if len(pending) > workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise TrainingError(
            "A process that counted words was killed, perhaps because memory ran out; run the "
            "command again with fewer workers."
        ) from error


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches every process; the parent process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _without_rarest(counts: Counter[str], keep: int) -> Counter[str]:
    values = np.fromiter(counts.values(), np.int64, len(counts))
    floor = int(np.partition(values, -keep - 1)[-keep - 1])
    note(f"{len(counts):,} distinct words: those seen fewer than {floor + 1} times are dropped.")
    return Counter({word: count for word, count in counts.items() if count > floor})
