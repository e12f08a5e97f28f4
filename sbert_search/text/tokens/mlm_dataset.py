"""Read masked examples from token shards, to train or evaluate a masked language model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sbert_search.base.arrays import Ints
from sbert_search.config import to_mapping
from sbert_search.text.tokens.masking import MaskSettings, mask_tokens
from sbert_search.text.tokens.segments import SegmentSettings, plan_examples, read_examples
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.specials import SpecialTokens, mask_vocabulary
from sbert_search.text.tokens.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class MaskedExamples:
    """Pre-training examples with masked tokens, concatenated; all arrays are int64."""

    input_ids: Ints  # what the model reads, masks included, (n_tokens,)
    token_type_ids: Ints  # 0 in the first segment, 1 in the second, (n_tokens,)
    lengths: Ints  # number of tokens of each example, (n,)
    positions: Ints  # indices in ``input_ids`` of the tokens to predict, ascending, (n_masked,)
    labels: Ints  # original ids of the tokens to predict, (n_masked,)
    pair_labels: Ints  # 1 if the second segment does not follow the first, otherwise 0, (n,)


class MaskedCorpus:
    """The pre-training examples of some documents.

    The tokens of each example are fixed when this object is made. The masks of an example are
    computed each time the example is read, from the seed, the index of the example and the epoch.
    """

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
        """Plan the examples of ``documents``: the first, and the index after the last; None: all.

        ``tokenizer`` made the tokens of the shards; it tells which tokens are special.
        """
        low, high = documents or (0, len(shards.document_starts) - 1)
        self._shards, self._masks, self._seed = shards, masks, seed
        self._special, self._vocabulary = SpecialTokens.of(tokenizer), mask_vocabulary(tokenizer)
        self._plan = plan_examples(
            shards.sentence_starts, shards.document_starts[low : high + 1], segments, seed=seed
        )
        # What determines the examples, besides the seed and the tokenizer, as a JSON object.
        self.identity: Mapping[str, object] = {
            "shards": [f.xxh3_128 for shard in shards.manifest.shards for f in shard.files],
            "documents": [low, high],
            "segments": to_mapping(segments),
            "masks": to_mapping(masks),
        }

    def __len__(self) -> int:
        return len(self._plan)

    @property
    def lengths(self) -> Ints:
        """Number of tokens of each example, special tokens included, int64 (n,)."""
        return self._plan.lengths

    def read(self, rows: Ints, epoch: int = 0) -> MaskedExamples:
        """Read the examples with the indices ``rows``, (n,), with the masks of an epoch."""
        special = self._special
        examples = read_examples(
            self._shards, self._plan, rows, cls_id=special.cls_id, sep_id=special.sep_id
        )
        masked = mask_tokens(
            examples.input_ids,
            examples.lengths,
            rows,
            self._vocabulary,
            self._masks,
            seed=self._seed,
            epoch=epoch,
        )
        return MaskedExamples(
            masked.input_ids,
            examples.token_type_ids,
            examples.lengths,
            masked.positions,
            masked.labels,
            examples.label,
        )
