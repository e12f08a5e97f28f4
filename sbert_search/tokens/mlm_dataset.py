"""A corpus as masked examples: what a masked language model learns from, or is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sbert_search.config import to_mapping
from sbert_search.corpus.shards import TokenShards
from sbert_search.runtime.arrays import Ints
from sbert_search.tokens.examples import read_examples
from sbert_search.tokens.masking import MaskSettings, mask_tokens
from sbert_search.tokens.segments import SegmentSettings, plan_examples
from sbert_search.tokens.specials import SpecialTokens, mask_vocabulary
from sbert_search.tokens.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class MaskedExamples:
    """Some examples, end to end, with holes.

    Attributes:
        input_ids: What the model sees, int64 (total,).
        token_type_ids: Segment of each token, int64 (total,).
        lengths: Tokens of each example, int64 (n,).
        positions: Tokens to be guessed, rising, int64 (n_masked,).
        labels: What stood there, int64 (n_masked,).
        pair_labels: 1 where the second segment does not follow the first, int64 (n,).
    """

    input_ids: Ints
    token_type_ids: Ints
    lengths: Ints
    positions: Ints
    labels: Ints
    pair_labels: Ints


class MaskedCorpus:
    """The examples of some documents, cut once; masks are drawn when an example is read."""

    def __init__(
        self,
        shards: TokenShards,
        tokenizer: TextTokenizer,
        segments: SegmentSettings,
        masks: MaskSettings,
        *,
        seed: int,
        documents: tuple[int, int] | None = None,
    ) -> None:
        """Cut documents into examples.

        Args:
            shards: Tokens of the documents, made by this tokenizer.
            tokenizer: Says which tokens are special.
            segments: What an example is.
            masks: How it is masked.
            seed: Of cuts, pairs and masks.
            documents: The first one to use and the one behind the last; None: all.

        Raises:
            CorpusError: These documents make no such examples.
            ModelError: The tokenizer lacks a special token.
        """
        low, high = documents or (0, len(shards.document_starts) - 1)
        self._shards, self._masks, self._seed = shards, masks, seed
        self._special, self._vocabulary = SpecialTokens.of(tokenizer), mask_vocabulary(tokenizer)
        self._plan = plan_examples(
            shards.sentence_starts, shards.document_starts[low : high + 1], segments, seed=seed
        )
        self._identity = {
            "shards": [f.xxh3_128 for shard in shards.manifest.shards for f in shard.files],
            "documents": [low, high],
            "segments": to_mapping(segments),
            "masks": to_mapping(masks),
        }

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def lengths(self) -> Ints:
        """Tokens of each example, special ones included, int64 (n,)."""
        return self._plan.lengths

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that the examples depend on beside the seed, as JSON can hold it."""
        return self._identity

    def read(self, rows: Ints, epoch: int = 0) -> MaskedExamples:
        """Read some examples, masked as they are in an epoch.

        Args:
            rows: Which examples, (n,).
            epoch: Each has other masks, unless they are static.
        """
        special = self._special
        found = read_examples(
            self._shards, self._plan, rows, cls_id=special.cls_id, sep_id=special.sep_id
        )
        holes = mask_tokens(
            found.input_ids,
            found.lengths,
            rows,
            self._vocabulary,
            self._masks,
            seed=self._seed,
            epoch=epoch,
        )
        return MaskedExamples(
            holes.input_ids,
            found.token_type_ids,
            found.lengths,
            holes.positions,
            holes.labels,
            found.label,
        )
