"""Fill the masks of a text with a masked language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import QueryError
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.text.tokens.specials import SpecialTokens


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One predicted token for one mask.

    Attributes:
        hole: Number of the mask among the masks of the text, from 0.
        rank: Rank of the token for this mask, from 1.
        token: The predicted token.
        probability: Probability of the token among the whole vocabulary.
        text: The text with the token in place of this mask.
    """

    hole: int
    rank: int
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill_mask(model: MaskedLanguageModel, text: str, *, k: int = 5) -> list[FilledMask]:
    """Predict the token of each mask in a text.

    Each prediction fills one mask. Its text still contains the other masks.

    Args:
        model: Model in evaluation mode.
        text: A text with at least one mask, written as [MASK] or as the mask token of the
            model's tokenizer.
        k: Number of tokens to predict for each mask.

    Returns:
        Predictions in the order of the masks; for each mask, the most probable token first.

    Raises:
        QueryError: The text has no mask or more tokens than the model reads, or ``k`` is below 1.
        CorpusError: The text has a lone surrogate, which UTF-8 cannot encode.
        ModelError: As for `SpecialTokens.of`.
    """
    special = SpecialTokens.of(model.tokenizer)
    text = text.replace("[MASK]", special.mask)
    (ids,), truncated = model.tokenizer.encode([text])
    positions = [position for position, token in enumerate(ids) if token == special.mask_id]
    if truncated[0]:
        raise QueryError(
            f"The text has {truncated[0]} tokens more than the {model.tokenizer.max_len} that the "
            "model reads; shorten it."
        )
    if not positions:
        raise QueryError(
            f"{text!r:.200} has no mask; write {special.mask} where a word is missing."
        )
    if k < 1:
        raise QueryError(f"k is {k}; it must be at least 1.")
    device = next(model.parameters()).device
    tokens = PackedTokens.from_lists([ids], device=device)
    logits = model(tokens, torch.tensor(positions, device=device)).token_logits.float()
    best = logits.softmax(-1).topk(min(k, logits.shape[1]))
    filled_masks = []
    for hole, (position, probabilities, token_ids) in enumerate(
        zip(positions, best.values.tolist(), best.indices.tolist(), strict=True)
    ):
        for rank, (probability, token_id) in enumerate(
            zip(probabilities, token_ids, strict=True), start=1
        ):
            filled = [*ids[1:position], token_id, *ids[position + 1 : -1]]
            token = model.tokenizer.backend.id_to_token(token_id) or ""
            filled_text = model.tokenizer.backend.decode(filled, skip_special_tokens=False)
            filled_masks.append(FilledMask(hole, rank, token, probability, filled_text))
    return filled_masks
