"""Extend the vocabulary of a model by new word pieces, with embeddings computed from old ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.weights import Checkpoint
from sbert_search.errors import ConfigError
from sbert_search.models.token_heads import TOKEN_HEADS
from sbert_search.text.tokens.tokenizer import TextTokenizer

_TABLE = "embeddings.word.weight"


def extend_vocabulary(read: Checkpoint, old: TextTokenizer, new: TextTokenizer) -> Checkpoint:
    """Add an embedding for each new word piece to a model.

    The old tokenizer splits a new piece into old pieces; the new embedding is the mean of the
    embeddings of these old pieces. If the model has a head over the vocabulary, the matrix and the
    bias of the head are extended in the same way.

    Args:
        read: The model. It is not changed; the result shares its other tensors.
        old: The tokenizer of the model.
        new: The tokenizer with the extended vocabulary.

    Raises:
        ConfigError: The new vocabulary does not keep all pieces of the old one with their ids.

    Source: Gee et al. 2022, Fast Vocabulary Transfer (arXiv:2402.09977), section 3.
    """
    added = _added_pieces(old, new)
    split = old.backend.model.tokenize
    parts_of = {piece_id: [token.id for token in split(piece)] for piece, piece_id in added.items()}
    size = max([read.encoder.config.vocab_size, *(piece_id + 1 for piece_id in parts_of)])

    def extended(rows: Tensor) -> Tensor:
        larger = torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])
        for piece_id, parts in parts_of.items():
            larger[piece_id] = rows[parts].mean(dim=0)
        return larger

    state = read.encoder.state_dict()
    state[_TABLE] = extended(state[_TABLE])
    encoder = Encoder(replace(read.encoder.config, vocab_size=size))
    encoder.load_state_dict(state, assign=True)
    layout = TOKEN_HEADS[encoder.config.layout]
    over_vocabulary = {layout.decoder, *layout.biases}
    head = {n: extended(part) if n in over_vocabulary else part for n, part in read.head.items()}
    return Checkpoint(encoder.requires_grad_().eval(), head, read.settings)


def _added_pieces(old: TextTokenizer, new: TextTokenizer) -> dict[str, int]:
    """Return the pieces that only the new vocabulary has, with their ids.

    Raises:
        ConfigError: An old piece is missing, or its id differs.
    """
    known, extended = old.backend.get_vocab(), new.backend.get_vocab()
    moved = next((piece for piece in sorted(known) if extended.get(piece) != known[piece]), None)
    if moved is not None:
        found = f"has the id {extended[moved]}" if moved in extended else "has no id"
        raise ConfigError(
            f"The vocabulary of {new.folder} ({new.vocab_size:,} tokens) does not extend that of "
            f"the model ({old.vocab_size:,}): {moved!r} {found}, not {known[moved]}. "
            "Make it with `sbert-search tokenizer train --extend`, or leave out the option "
            "tokenizer."
        )
    return {piece: piece_id for piece, piece_id in extended.items() if piece not in known}
