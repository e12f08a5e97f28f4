"""How text becomes words, as BERT has it, and how often each word of a corpus is seen."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from tokenizers import normalizers, pre_tokenizers

from sbert_search.errors import TrainingError
from sbert_search.runtime.progress import note

MAX_WORD_CHARS = 100  # BERT reads a longer word as [UNK]
MAX_DISTINCT_WORDS = 10_000_000  # about 1 GiB of words and counts


@dataclass(frozen=True, kw_only=True, slots=True)
class WordRules:
    """BERT's normalisation: clean, space out CJK, lower-case, strip accents; then split.

    Attributes:
        lowercase: False for a cased vocabulary.
        strip_accents: None means: as ``lowercase``.
        split_cjk: Every CJK ideograph is a word of its own.
    """

    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True

    def normalizer(self) -> normalizers.BertNormalizer:
        """Make the library's normaliser."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=self.split_cjk,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )


def count_words(
    batches: Iterable[Sequence[str]],
    rules: WordRules,
    *,
    workers: int = 1,
    max_distinct: int = MAX_DISTINCT_WORDS,
) -> dict[str, int]:
    """Count the words of a corpus, batch by batch, in several processes.

    The result does not depend on the number of processes. Words longer than BERT reads are left
    out. When more than ``max_distinct`` words are known, the rarest half is forgotten (with a note
    on stderr), so memory stays bounded; the words that matter to a vocabulary are far above.

    Args:
        batches: Texts, some megabytes a batch; read as fast as they are counted.
        rules: How a text is cut into words.
        workers: Processes; 1 counts in this one.
        max_distinct: Most different words to keep.
    """
    total: Counter[str] = Counter()
    for counts in _counted(batches, rules, workers):
        total.update(counts)
        if len(total) > max_distinct:
            total = _without_rarest(total, max_distinct // 2)
    return dict(total)


def count_batch(texts: Sequence[str], rules: WordRules) -> dict[str, int]:
    """Count the words of some texts."""
    chunks: Counter[str] = Counter()
    for text in texts:
        # BERT's rules see one character at a time, so what stands between two blanks can be
        # counted first and cleaned once; the rarer kinds of white space are left to the rules.
        chunks.update(text.translate(_BLANKS).split(" "))
    normalize = rules.normalizer().normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in split(normalize(chunk)):
            if len(word) <= MAX_WORD_CHARS:
                words[word] += count
    return dict(words)


_BLANKS = str.maketrans("\t\n\r", "   ")


def _counted(
    batches: Iterable[Sequence[str]], rules: WordRules, workers: int
) -> Iterator[dict[str, int]]:
    """Yield the counts of each batch in the order of the batches, few of which are in memory."""
    if workers == 1:
        for texts in batches:
            yield count_batch(texts, rules)
        return
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=_leave_interrupts
        ) as pool:
            waiting: deque[Future[dict[str, int]]] = deque()
            for texts in batches:
                waiting.append(pool.submit(count_batch, texts, rules))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise TrainingError(
            "A process that counted words was killed, perhaps for want of memory; run it again "
            "with fewer of them."
        ) from error


def _leave_interrupts() -> None:
    """Ignore Ctrl-C, which reaches every process, and which the first one answers for all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _without_rarest(counts: Counter[str], keep: int) -> Counter[str]:
    values = np.fromiter(counts.values(), np.int64, len(counts))
    floor = int(np.partition(values, -keep - 1)[-keep - 1])
    note(f"{len(counts):,} different words: those seen fewer than {floor + 1} times are dropped.")
    return Counter({word: count for word, count in counts.items() if count > floor})
