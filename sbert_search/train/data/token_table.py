"""Token ids of many texts in arrays, tokenised by one process or by all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import warn
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.text.tokens.tokenizer import TextTokenizer

_TOKENIZED_AT_ONCE = 4096
_EXCHANGED_AT_ONCE = 1 << 18  # texts whose tokens the ranks exchange together


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Token ids of many texts, concatenated."""

    ids: NDArray[np.int32]  # (tokens,)
    starts: NDArray[np.int64]  # offset of each text, and the total at the end, (texts + 1,)
    types: NDArray[np.uint8] | None = None  # segment ids, (tokens,); None: all are 0

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenizer: TextTokenizer, ranks: Ranks | None = None
    ) -> TokenTable:
        """Tokenise texts, equal on all ranks, each of which does a part; warn of truncated ones."""
        ranks = ranks or Ranks()
        ids, lengths, n_long = list[NDArray[np.int32]](), list[NDArray[np.int64]](), 0.0
        for start in range(0, len(texts), _EXCHANGED_AT_ONCE):
            block = texts[start : start + _EXCHANGED_AT_ONCE]
            cuts = [len(block) * rank // ranks.world for rank in (ranks.rank, ranks.rank + 1)]
            own, own_lengths, long = _tokenised(block[slice(*cuts)], tokenizer)
            ids.append(ranks.gather(torch.from_numpy(own))[0].numpy())
            lengths.append(ranks.gather(torch.from_numpy(own_lengths))[0].numpy())
            n_long += ranks.sum([long])[0]
        if n_long:
            warn(
                f"{n_long:,.0f} of {len(texts):,} texts are truncated to {tokenizer.max_len} "
                "tokens."
            )
        starts = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
        return cls(np.concatenate(ids), starts)

    @classmethod
    def join(
        cls,
        ids: Sequence[NDArray[np.int32]],
        types: Sequence[NDArray[np.uint8]] | None = None,
    ) -> TokenTable:
        """Concatenate the ids of each text, and their segment ids."""
        starts = np.cumsum([0, *map(len, ids)], dtype=np.int64)
        return cls(np.concatenate(ids), starts, None if types is None else np.concatenate(types))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each text, (texts,)."""
        return np.diff(self.starts)

    def fingerprint(self, *arrays: NDArray[np.generic]) -> str:
        """Hash the table, and arrays that belong to its texts."""
        digest = xxhash.xxh3_128()
        for array in (self.ids, self.starts, self.types, *arrays):
            digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def keys(self) -> list[bytes]:
        """Return a key of each text; the keys of two texts are equal if all their tokens are."""
        cuts = zip(self.starts[:-1].tolist(), self.starts[1:].tolist(), strict=True)
        return [token_key(self.ids[start:end]) for start, end in cuts]

    def take(self, texts: NDArray[np.integer]) -> TokenTable:
        """Return a table of some texts; it has no segment ids."""
        return self.join([self.ids[self.starts[n] : self.starts[n + 1]] for n in texts.tolist()])

    def pack(self, texts: NDArray[np.integer]) -> PackedTokens:
        """Concatenate the tokens of some texts, without padding, as one batch."""
        slices = [slice(self.starts[text], self.starts[text + 1]) for text in texts.tolist()]
        return PackedTokens(
            _joined(self.ids, slices),
            tuple(self.lengths[texts].tolist()),
            None if self.types is None else _joined(self.types, slices),
        )


@torch.no_grad()
def outputs_of(model: nn.Module, table: TokenTable, width: int) -> NDArray[np.float32]:
    """Return the output of a model for every text, float32 (texts, width).

    The model computes in fp32, even if training uses bf16: its weights are in fp32, and there is no
    autocast. The caller sets eval mode.
    """
    outputs = np.empty((len(table.lengths), width), dtype=np.float32)
    device = next(model.parameters()).device
    for texts in token_batches(table.lengths, TOKENS_AT_ONCE):
        outputs[texts] = model(table.pack(texts).to(device)).float().cpu().numpy()
    return outputs


def token_key(ids: NDArray[np.int32]) -> bytes:
    """Hash the token ids of a text; a model computes equal vectors for texts with equal ids."""
    return xxhash.xxh3_128_digest(ids.tobytes())


def _tokenised(
    texts: Sequence[str], tokenizer: TextTokenizer
) -> tuple[NDArray[np.int32], NDArray[np.int64], int]:
    """Return the token ids of the texts, their lengths, and how many texts were truncated."""
    parts, lengths, n_long = [np.empty(0, np.int32)], list[int](), 0
    for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
        ids, cut = tokenizer.encode(texts[start : start + _TOKENIZED_AT_ONCE])
        parts += [np.array(each, dtype=np.int32) for each in ids]
        lengths += map(len, ids)
        n_long += int(np.count_nonzero(cut))
    return np.concatenate(parts), np.array(lengths, dtype=np.int64), n_long


def _joined(values: NDArray[np.integer], slices: Sequence[slice]) -> Tensor:
    return torch.from_numpy(np.concatenate([values[part] for part in slices]).astype(np.int64))
