"""The settings of an index: FAISS index and search parameters, terms and BM25, tuning and trials.

FAISS is a library for approximate nearest-neighbour search. Its factory string names a type of
index: IVF splits vectors into inverted lists by their nearest centroid, HNSW links them in a graph,
PQ, SQ and RaBitQ compress each vector to a code, and PCA, OPQ and RR transform vectors beforehand.

Settings and trials are kept in the manifest, the file that describes the state of an index.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from sbert_search.config import require_types, unknown_name
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError

# An index with fewer rows gets no FAISS files, since an exact scan is faster than loading a graph.
# In one of n shards, the limit is 50,000 / n rows.
MIN_ANN_ROWS = 50_000
TRAINING_ROWS_PER_LIST = 39  # FAISS warns if k-means has fewer training vectors per centroid

Metric = Literal["cosine", "dot", "euclidean"]
VectorType = Literal["float32", "float16"]
_Size = Annotated[int, Bounds(1, 1 << 20)]

_N = r"[1-9]\d{0,6}"
_PARTS = re.compile(
    rf"Flat|SQ(?:4|6|8|fp16|bf16)|RaBitQ(?:fs)?|HNSW{_N}|PCAR?{_N}|OPQ{_N}(?:_{_N})?|RR{_N}"
    rf"|IVF{_N}(?:_HNSW{_N})?|PQ{_N}(?:x(?:4|8|10|12))?(?:fs)?"
)
_TRANSFORM = re.compile(r"(PCAR?|OPQ|RR)\d")
_HNSW = re.compile(r"HNSW\d+")
_IVF = re.compile(r"IVF(\d+)")
_SQ_BYTES = {"SQ4": 0.5, "SQ6": 0.75, "SQ8": 1.0, "SQfp16": 2.0, "SQbf16": 2.0}
_BLOCK = 32  # codes per block of FAISS's fast scan ("fs"); each list is padded to whole blocks
_RABITQ_FACTORS = 8  # bytes of correction factors that RaBitQ stores with each vector


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexSpec:
    """How to search the vectors of an index.

    Attributes:
        factory: FAISS factory string; ``Flat`` is an exact scan, which needs no FAISS. Others are
            such as ``SQ8``, ``HNSW32``, ``HNSW32,SQ8``, ``IVF4096,Flat``, ``IVF4096,PQ48``,
            ``OPQ48,IVF4096,PQ48`` or ``IVF4096,RaBitQfs`` (one bit per dimension).
        nprobe: Number of inverted lists visited per query; only IVF uses it.
        ef_search: Size of the candidate list of a query; only HNSW uses it.
        ef_construction: Size of the candidate list when a vector is added; only HNSW uses it.
        refine: Number of candidates that FAISS returns per result of a search. The candidates are
            then scored with the stored vectors. 0: 10 for RaBitQ; 4 for PQ, OPQ, SQ4, SQ6, SQ8,
            PCA and RR; 1 for the rest.

    Raises:
        ConfigError: A part of the factory string is unknown, or a value has another type or is out
            of range.

    Example:
        >>> IndexSpec(factory="IVF4096,SQ8", nprobe=32).n_lists
        4096
    """

    factory: Annotated[str, Bounds(metavar="FACTORY")] = "Flat"
    nprobe: _Size = 16
    ef_search: _Size = 64
    ef_construction: _Size = 100
    refine: Annotated[int, Bounds(0, 1000)] = 0

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores the values, and reading it checks their types
        check(self, table="index.")
        self._check_factory()

    @property
    def is_flat(self) -> bool:
        """Whether every search is an exact scan of the stored vectors."""
        return self.factory == "Flat"

    @property
    def is_hnsw(self) -> bool:
        """Whether the index is an HNSW graph."""
        return any(_HNSW.fullmatch(part) for part in self.factory.split(","))

    @property
    def links(self) -> int:
        """HNSW's M: a row has at most M links on a level, but 2M on level 0; 0 without a graph."""
        match = re.search(r"HNSW(\d+)(?=,|$)", self.factory)
        return int(match.group(1)) if match and self.is_hnsw else 0

    @property
    def n_lists(self) -> int:
        """Number of inverted lists; 0 without IVF."""
        match = _IVF.search(self.factory)
        return int(match.group(1)) if match else 0

    @property
    def n_centroids(self) -> int:
        """Number of centroids of the largest k-means of IVF, PQ and OPQ; 0 without any of these."""
        codes = re.search(r"PQ\d+(?:x(\d+))?", self.factory)
        codewords = 2 ** int(codes.group(1) or 8) if codes else 0
        return max(self.n_lists, codewords)

    @property
    def min_training_rows(self) -> int:
        """Smallest number of vectors for the k-means of IVF, PQ and OPQ; 0 without any of these."""
        return TRAINING_ROWS_PER_LIST * self.n_centroids

    @property
    def candidates_per_result(self) -> int:
        """Number of candidates that FAISS returns per result: ``refine``, or its default."""
        if self.refine:
            return self.refine
        if "RaBitQ" in self.factory:
            return 10
        return 4 if re.search("PQ|SQ[468]|PCA|RR", self.factory) else 1

    @property
    def is_compressed(self) -> bool:
        """Whether FAISS stores compressed vectors (as with PQ), so its scores are approximate."""
        return bool(re.search("PQ|SQ|RaBitQ|PCA|RR", self.factory))

    def predicted_bytes(self, n_rows: int, dim: int) -> int:
        """Predict the bytes of a FAISS index of ``n_rows`` vectors; 0 for Flat, without FAISS."""
        if self.is_flat:
            return 0
        code, per_row, fixed = 4.0 * dim, 0.0, 0.0
        for part in self.factory.split(","):
            sizes = [int(digits) for digits in re.findall(r"\d+", part)]
            if _TRANSFORM.match(part):
                width = sizes[0] if len(sizes) == 1 and part[0] in "PR" else sizes[-1]
                fixed += 4.0 * dim * (dim if part.startswith("OPQ") else width)
                dim = dim if part.startswith("OPQ") and len(sizes) == 1 else width
                code = 4.0 * dim
            elif _HNSW.fullmatch(part):
                per_row += 8.0 * sizes[0] + 16  # neighbours of level 0, offsets, levels
            elif _IVF.match(part):
                per_row, fixed = per_row + 8, fixed + 4.0 * dim * sizes[0]  # ids of rows, centroids
            elif part.startswith("PQ"):
                bits = sizes[1] if len(sizes) > 1 else 8
                code, fixed = sizes[0] * bits / 8, fixed + 4.0 * dim * 2**bits  # codes, codebooks
            elif part.startswith("SQ"):
                code = dim * _SQ_BYTES[part]
            elif part.startswith("RaBitQ"):
                code = -(-dim // 8) + _RABITQ_FACTORS
        if self.factory.endswith("fs"):
            fixed += max(self.n_lists, 1) * _BLOCK / 2 * code  # half a block of padding per list
        return int(n_rows * (code + per_row) + fixed)

    def _check_factory(self) -> None:
        parts = self.factory.split(",")
        for part in parts:
            if not _PARTS.fullmatch(part):
                raise ConfigError(
                    f"index.factory is {self.factory!r}; {part!r} is unknown. Use Flat, SQ8, "
                    "HNSW32, 'IVF4096,Flat', 'IVF4096,SQ8' or 'IVF4096,PQ48'; other "
                    "numbers work too."
                )
        core = [part for part in parts if not _TRANSFORM.match(part)]
        if core and _IVF.match(core[0]) and len(core) < 2:
            raise ConfigError(
                f"index.factory is {self.factory!r}; add how the lists store vectors, "
                f"such as {self.factory},Flat."
            )
        if not core or len(core) > 3:
            raise ConfigError(
                f"index.factory is {self.factory!r}; it must name one index, such as Flat or "
                "HNSW32, after any transforms."
            )


NO_LANGUAGE = "none"
UNSTEMMED = ("chinese", "korean")  # there are stop words for them, but no stemmer

# Where the lists, made for a tokenizer without words of one letter, do not suit an index with them.
# Stop words that exist only before an apostrophe (l'eau) would hide the C of "vitamine C"; letters
# beside an apostrophe are not indexed anyway. Without the pronoun, each query with "I" would prefer
# the few documents with one.
_NO_STOP_WORDS = {"french": frozenset("cdjlmnst"), "italian": frozenset("cl")}
_MORE_STOP_WORDS = {"english": ("i",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class LexicalSettings:
    """How texts become terms (the stems of words), and the parameters of the BM25 score.

    Attributes:
        language: Language of the stemmer and of the default stop words; ``none``: no stemmer, and
            no stop words by default.
        stop_words: Words that are not indexed. None: the list of the library bm25s for the
            language (empty if there is none), with "i" for English and without the letters that
            French and Italian elide; the constructor puts that list in place of None.
        title_weight: How many times each word of a title counts; 0: titles are not indexed.
        k1: BM25's saturation of repeated words; larger values let repetitions count more.
        b: BM25's normalisation by document length, from 0 (none) to 1 (full).

    Raises:
        ConfigError: A value has the wrong type or is out of range; or the language is unknown, and
            no stop words are given.

    Example:
        >>> "der" in LexicalSettings(language="german").stop_words
        True
    """

    language: Annotated[str, Bounds(metavar="NAME")] = "english"
    stop_words: tuple[str, ...] | None = None
    title_weight: Annotated[int, Bounds(0, 100)] = 2
    k1: Annotated[float, Bounds(0, 100)] = 1.2
    b: Annotated[float, Bounds(0, 1)] = 0.75

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores the values, and reading it checks their types
        check(self)
        words = self.stop_words  # the caller may have given a list in place of a tuple
        words = _stop_words(self.language) if words is None else tuple(words)
        object.__setattr__(self, "stop_words", words)

    def require_known_language(self) -> None:
        """Refuse an unknown language, which the constructor accepts if stop words are given.

        It is not called for the settings of an existing index: the version that built the index may
        have known the language, and the index can still be searched by vectors.

        Raises:
            ConfigError: The language is unknown.
        """
        if self.language != NO_LANGUAGE:
            _require_known(self.language)

    @property
    def terms(self) -> tuple[object, ...]:
        """The settings on which postings depend; the others, k1 and b, affect only searches."""
        return self.language, self.stop_words, self.title_weight


def _stop_words(language: str) -> tuple[str, ...]:
    """Return the stop words of a language; an empty tuple if there is no list for it."""
    if language == NO_LANGUAGE:
        return ()
    _require_known(language)
    unfit = _NO_STOP_WORDS.get(language, ())
    words = _listed_stop_words().get(language, ())
    return (*(word for word in words if word not in unfit), *_MORE_STOP_WORDS.get(language, ()))


def naming_stop_words(settings: LexicalSettings) -> tuple[str, ...]:
    """Return words that are too frequent to describe a document or a group of documents.

    These are the stop words and, for English, a longer list. The English stop words of a search
    lack frequent words such as "he" and "from", since BM25 gives these little weight anyway.
    """
    more = _listed_stop_words()["english_plus"] if settings.language == "english" else ()
    return tuple(dict.fromkeys((*(settings.stop_words or ()), *more)))


@cache
def all_stop_words() -> frozenset[str]:
    """Return the stop words of all languages."""
    return frozenset(word for words in _listed_stop_words().values() for word in words)


_LEAST_WORDS = 200  # below, a text is too short for a guess of its language
_LEAST_SHARE = 0.15  # of the words that are stop words of the language
_TEXT_CHARACTERS = 2000  # of each text that are read


def likely_language(texts: Iterable[str]) -> str:
    """Return the language whose stop words are most frequent; ``english`` unless that is clear."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(r"[^\W\d_]+", text[:_TEXT_CHARACTERS].lower()))
    lists = {name: set(words) for name, words in _listed_stop_words().items()}
    english = lists.pop("english_plus") | lists.pop("english")
    found = {name: sum(counts[word] for word in words) for name, words in lists.items()}
    best = max(found, key=found.__getitem__)
    n_english = sum(counts[word] for word in english)
    is_clear = found[best] >= max(_LEAST_SHARE * counts.total(), 2 * n_english)
    return best if counts.total() >= _LEAST_WORDS and is_clear else "english"


@cache
def _listed_stop_words() -> dict[str, list[str]]:
    """Return the lists of stop_words.txt by name, of which all but english_plus are languages."""
    text = Path(__file__).with_name("lexical").joinpath("stop_words.txt").read_text("utf-8")
    _, *paragraphs = text.split("\n\n")  # the first one is the licence
    return {name.removesuffix(":"): words for name, *words in map(str.split, paragraphs)}


def _require_known(language: str) -> None:
    import Stemmer

    known = [NO_LANGUAGE, *UNSTEMMED, *Stemmer.algorithms()]
    if language not in known:
        raise ConfigError(unknown_name(language, language, known, "language"))


MAX_K = 1000  # largest k of recall@k


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneSettings:
    """The targets of a tuning, and its limits.

    Attributes:
        recall: Target of recall@k.
        k: The k of recall@k.
        latency_ms: Limit of the median processor time of a query, on one thread. None: no limit.
        max_minutes: Maximum time of the tuning. A kind of index is not built if the build is
            predicted to take too much of the remaining time, and no further kinds are compared
            when the best so far needs the remaining time for its build over all rows.
        n_queries: Largest number of queries, half to choose an index with and half to verify it.
        sample_rows: Number of rows in the sample on which kinds of index are compared.
        seed: Seed for drawing the sample and the queries.

    Raises:
        ConfigError: A value has another type or is out of range.

    Example:
        >>> TuneSettings(recall=0.99, latency_ms=5).max_minutes
        10.0
    """

    recall: Annotated[float, Bounds(above=0, high=1)] = 0.95
    k: Annotated[int, Bounds(1, MAX_K)] = 10
    latency_ms: Annotated[float | None, Bounds(above=0, below=math.inf)] = None
    max_minutes: Annotated[float, Bounds(above=0, below=math.inf)] = 10.0
    n_queries: Annotated[int, Bounds(2)] = 1000
    sample_rows: Annotated[int, Bounds(2)] = 100_000
    seed: Annotated[int, Bounds(0)] = 0

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores some of the values
        check(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The measurements of one FAISS index with one set of search parameters, on one thread."""

    spec: IndexSpec
    n_rows: int  # that were searched, one vector each
    # Recall@k: the share of the exact k nearest rows that the search returns, as mean over the
    # queries. A returned row counts if it is at least as near as the exact k-th.
    recall: float
    recall_error: float  # standard error over the queries
    p50_ms: float  # median processor time of a single query
    p99_ms: float  # 99th percentile of the processor time of a single query
    qps: float  # queries per second of processor time if many are searched together
    size_bytes: int = 0  # of the FAISS files, which a search maps into memory; 0: an exact scan
    predicted_bytes: int = 0  # `size_bytes` as predicted before the build
    build_s: float = 0.0  # to train and fill the FAISS index
    predicted_build_s: float = 0.0  # `build_s` as predicted before the build

    @property
    def bytes_per_vector(self) -> float:
        """Bytes of the FAISS index per vector, in addition to the stored vector."""
        return self.size_bytes / self.n_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The result of a tuning: the chosen FAISS index, and the measurements that decided."""

    recall: float  # target recall@k
    k: int
    queries: str  # where they came from, in words
    n_choosing: int  # queries used to choose the index
    n_verifying: int  # held-out queries, on which `verified` was measured
    verified: Trial  # the chosen FAISS index over all rows
    # Trials on a sample of the rows that no other one beats in both recall and qps, by ascending
    # recall.
    sampled: tuple[Trial, ...] = ()
    others: tuple[str, ...] = ()  # a sentence for each kind of index that was not chosen: why
    seconds: float = 0.0  # duration of the tuning
    machine: Mapping[str, object] = field(default_factory=dict)  # that ran the tuning
    # Versions of those that the tuning used, by name.
    libraries: Mapping[str, str] = field(default_factory=dict)
