"""A model over a vocabulary that was extended: rows for the new pieces, made of the old ones."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.weights import Checkpoint
from sbert_search.errors import ConfigError
from sbert_search.models.token_heads import TOKEN_HEADS
from sbert_search.tokens.tokenizer import TextTokenizer

_TABLE = "embeddings.word.weight"


def extend_vocabulary(read: Checkpoint, old: TextTokenizer, new: TextTokenizer) -> Checkpoint:
    """Give a model rows for the pieces that were added to its vocabulary.

    A new row is the mean of the rows of the pieces that the old tokenizer makes of the new one: in
    the embedding table, and in the matrix and the bias of a head over the vocabulary.

    Args:
        read: The model; its tensors are left as they are.
        old: Its tokenizer.
        new: The tokenizer with the extended vocabulary.

    Raises:
        ConfigError: The new vocabulary is not the old one with more pieces behind it.

    Source: Gee et al. 2022, Fast Vocabulary Transfer (arXiv:2402.09977), section 3.
    """
    added = _added_pieces(old, new)
    split = old.backend.model.tokenize
    made_of = {number: [token.id for token in split(piece)] for piece, number in added.items()}
    size = max(read.encoder.config.vocab_size, *(number + 1 for number in made_of))

    def grown(rows: Tensor) -> Tensor:
        larger = torch.cat([rows, rows.new_zeros(size - len(rows), *rows.shape[1:])])
        for number, parts in made_of.items():
            larger[number] = rows[parts].mean(dim=0)
        return larger

    state = read.encoder.state_dict()
    state[_TABLE] = grown(state[_TABLE])
    encoder = Encoder(replace(read.encoder.config, vocab_size=size))
    encoder.load_state_dict(state, assign=True)
    layout = TOKEN_HEADS[encoder.config.layout]
    by_word = {layout.decoder, *layout.biases}
    head = {name: grown(part) if name in by_word else part for name, part in read.head.items()}
    return Checkpoint(encoder.requires_grad_().eval(), head, read.settings)


def _added_pieces(old: TextTokenizer, new: TextTokenizer) -> dict[str, int]:
    """Give the pieces that the new vocabulary has beyond the old one, with their ids.

    Raises:
        ConfigError: An old piece has another id, or none.
    """
    known, wanted = old.backend.get_vocab(), new.backend.get_vocab()
    moved = next((piece for piece in sorted(known) if wanted.get(piece) != known[piece]), None)
    if moved is not None:
        raise ConfigError(
            f"The vocabulary of {new.folder} ({new.vocab_size:,} tokens) does not extend that of "
            f"the model ({old.vocab_size:,}): {moved!r} has the id {wanted.get(moved)}, there "
            f"{known[moved]}. Make it by `sbert-search tokenizer train --extend`, or leave "
            "tokenizer away."
        )
    return {piece: number for piece, number in wanted.items() if piece not in known}
