"""How the vectors of an index are searched: a FAISS factory string and search parameters.

FAISS is a library for approximate nearest-neighbour search. Its factory string names a type of
index: IVF splits vectors into inverted lists by their nearest centroid, HNSW links them in a graph,
PQ, SQ and RaBitQ compress each vector to a code, and PCA, OPQ and RR transform vectors beforehand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sbert_search.config import require_types
from sbert_search.errors import ConfigError

# A segment (a set of consecutive rows) with fewer rows gets no FAISS index, since an exact scan of
# the rows is faster than loading a graph. In one of n shards, the limit is 50,000 / n rows.
MIN_ANN_ROWS = 50_000
TRAINING_ROWS_PER_LIST = 39  # FAISS warns if k-means has fewer training vectors per centroid

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
        factory: A FAISS factory string such as ``Flat``, ``SQ8``, ``HNSW32``, ``HNSW32,SQ8``,
            ``IVF4096,Flat``, ``IVF4096,PQ48``, ``OPQ48,IVF4096,PQ48`` or ``IVF4096,RaBitQfs`` (one
            bit per dimension). ``Flat`` is an exact scan of the stored vectors and needs no FAISS.
        nprobe: Number of inverted lists visited per query; only IVF uses it.
        ef_search: Size of the candidate list of a query; only HNSW uses it.
        ef_construction: Size of the candidate list when a vector is added; only HNSW uses it.
        refine: Number of candidates that FAISS returns per result of a search. The candidates are
            then scored with the stored vectors. 0: 10 for RaBitQ; 4 for PQ, OPQ, SQ4, SQ6, SQ8,
            PCA and RR; 1 for the rest.

    Raises:
        ConfigError: A part of the factory string is unknown, or a value has another type or is out
            of range.
    """

    factory: str = "Flat"
    nprobe: int = 16
    ef_search: int = 64
    ef_construction: int = 100
    refine: int = 0

    def __post_init__(self) -> None:
        require_types(self)  # the manifest stores the values, and reading it checks their types
        for name, low, high in (
            ("nprobe", 1, 1 << 20),
            ("ef_search", 1, 1 << 20),
            ("ef_construction", 1, 1 << 20),
            ("refine", 0, 1000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"index.{name} is {value}; it must be from {low} to {high}.")
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
