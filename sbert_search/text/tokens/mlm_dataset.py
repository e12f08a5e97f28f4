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
    """Pre-training examples with masked tokens, concatenated into flat arrays.

    Attributes:
        input_ids: Token ids that the model reads, masks included, int64 (n_tokens,).
        token_type_ids: 0 for tokens of the first segment, 1 for tokens of the second segment, int64
            (n_tokens,).
        lengths: Number of tokens of each example, int64 (n,).
        positions: Indices in ``input_ids`` of the tokens to predict, ascending, int64 (n_masked,).
        labels: Original ids of the tokens to predict, int64 (n_masked,).
        pair_labels: 1 if the second segment does not follow the first, otherwise 0, int64 (n,).
    """

    input_ids: Ints
    token_type_ids: Ints
    lengths: Ints
    positions: Ints
    labels: Ints
    pair_labels: Ints


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
        """Plan the examples of some documents.

        Args:
            shards: Tokens of the documents, made with ``tokenizer``.
            tokenizer: The tokenizer; it tells which tokens are special.
            segments: How examples are formed from sentences.
            masks: How the tokens of the examples are masked.
            seed: Seed of the lengths, pairs and masks.
            documents: Index of the first document, and the index after the last; None: all
                documents of the shards.

        Raises:
            CorpusError: The documents give no examples, or ``segments.kind`` is ``nsp`` and there
                are fewer than two documents.
            ModelError: The tokenizer lacks a special token, or adds several special tokens before
                or after a text.
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
        """Number of tokens of each example, special tokens included, int64 (n,)."""
        return self._plan.lengths

    @property
    def identity(self) -> Mapping[str, object]:
        """The shards, documents and settings that determine the examples, as a JSON object.

        The examples also depend on the seed and the tokenizer. The JSON object contains neither.
        """
        return self._identity

    def read(self, rows: Ints, epoch: int = 0) -> MaskedExamples:
        """Read some examples with the masks of an epoch.

        Args:
            rows: Indices of the examples, (n,).
            epoch: Number of the epoch. Each epoch has other masks, unless `MaskSettings.static` is
                true.
        """
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
