"""Which words a masked language model puts into the holes of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sbert_search.encoder.packed import PackedTokens
from sbert_search.errors import QueryError
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.tokens.specials import SpecialTokens


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One word for one hole.

    Attributes:
        hole: Number of the hole in the text, from 0.
        rank: From 1.
        token: The piece of the vocabulary.
        probability: Of this piece among all.
        text: The text with the piece in this hole.
    """

    hole: int
    rank: int
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill_mask(model: MaskedLanguageModel, text: str, *, k: int = 5) -> list[FilledMask]:
    """Fill each hole of a text, the others staying open.

    Args:
        model: In evaluation mode.
        text: With at least one hole, written [MASK] or as the model's tokenizer writes it.
        k: Words for each hole.

    Returns:
        Hole by hole, the most probable word first.

    Raises:
        QueryError: The text has no hole, is longer than the model reads, or ``k`` is below 1.
    """
    special = SpecialTokens.of(model.tokenizer)
    text = text.replace("[MASK]", special.mask)
    (ids,), lost = model.tokenizer.encode([text])
    holes = [place for place, token in enumerate(ids) if token == special.mask_id]
    if not holes:
        raise QueryError(f"{text!r} has no hole; write {special.mask} where a word is missing.")
    if lost[0]:
        raise QueryError(
            f"The text has {lost[0]} tokens more than the {model.tokenizer.max_len} that the model "
            "reads; shorten it."
        )
    if k < 1:
        raise QueryError(f"k is {k}; ask for at least one word.")
    device = next(model.parameters()).device
    tokens = PackedTokens.from_lists([ids], device=device)
    logits = model(tokens, torch.tensor(holes, device=device)).words.float()
    best = logits.softmax(-1).topk(min(k, logits.shape[1]))
    found = []
    for hole, (place, probabilities, pieces) in enumerate(
        zip(holes, best.values.tolist(), best.indices.tolist(), strict=True)
    ):
        for rank, (probability, piece) in enumerate(
            zip(probabilities, pieces, strict=True), start=1
        ):
            filled = [*ids[1:place], piece, *ids[place + 1 : -1]]
            token = model.tokenizer.backend.id_to_token(piece) or ""
            whole = model.tokenizer.backend.decode(filled, skip_special_tokens=False)
            found.append(FilledMask(hole, rank, token, probability, whole))
    return found
