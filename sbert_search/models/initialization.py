"""Start a model from another one: its layers, its vectors, or with more word pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.weights import Checkpoint
from sbert_search.models.heads import Dense
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.models.token_heads import TOKEN_HEADS
from sbert_search.text.tokens.tokenizer import TextTokenizer

# Settings that student and teacher must have in common. The layout is not among them, since it only
# names the file format: a student in the format of distilbert can copy the layers of a BERT.
_SAME = (
    "vocab_size",
    "hidden_size",
    "embedding_size",
    "heads",
    "intermediate_size",
    "max_positions",
    "position_embeddings",
    "position_offset",
    "attention_terms",
    "relative_positions",
    "position_buckets",
    "key_bias",
    "gated",
    "pre_norm",
    "has_biases",
    "rotary_base",
    "local_rotary_base",
    "local_reach",
)


def make_student(teacher: MaskedLanguageModel, config: EncoderConfig) -> MaskedLanguageModel:
    """Make a student with copies of the embeddings, some blocks and the token head of its teacher.

    Segment embeddings are not copied. The student has at most as many layers as the teacher; their
    other sizes are equal.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108), which takes every other
    layer.
    """
    source = teacher.encoder.config
    if obstacles := _obstacles(config, source):
        raise ConfigError(
            f"The student cannot start with its teacher's layers: {'; '.join(obstacles)}. Set "
            "these settings of model as in the teacher, with at most as many layers, none shared; "
            "or name another teacher."
        )
    student = MaskedLanguageModel(Encoder(config), teacher.tokenizer)
    for name, part in student.encoder.embeddings.named_children():
        if name != "token_type":
            state = teacher.encoder.embeddings.get_submodule(name).state_dict()
            part.load_state_dict(state)
    if config.relative_positions:
        student.encoder.distances.load_state_dict(teacher.encoder.distances.state_dict())
    if config.position_buckets:
        shared = teacher.encoder.position_biases.state_dict()
        student.encoder.position_biases.load_state_dict(shared)
    layers = alternate(source.layers, config.layers)
    for block, layer in zip(student.encoder.blocks, layers, strict=True):
        block.load_state_dict(teacher.encoder.blocks[layer].state_dict())
    student.token_head.load_state_dict(teacher.token_head.state_dict())
    return student


def _obstacles(config: EncoderConfig, source: EncoderConfig) -> list[str]:
    """Say why a student cannot have copies of the layers of a teacher; empty if it can."""
    found = [
        f"{name} is {getattr(config, name)}, and the teacher's {getattr(source, name)}"
        for name in _SAME
        if getattr(config, name) != getattr(source, name)
    ]
    if config.layers > source.layers:
        found.append(f"layers is {config.layers}, and the teacher has {source.layers}")
    for owner, shape in (("student", config), ("teacher", source)):
        if shape.block_order != list(range(shape.layers)):
            found.append(f"layers of the {owner} share their weights")
    return found


def alternate(layers: int, chosen: int) -> list[int]:
    """Choose layers, from 0, evenly spaced from first to last; 6 of 12: 0, 2, 4, 7, 9, 11."""
    if chosen == 1:
        return [0]
    return [round(n * (layers - 1) / (chosen - 1)) for n in range(chosen)]


def keep_layers(encoder: Encoder, layers: int | Sequence[int]) -> Encoder:
    """Make an encoder with copies of the embeddings and some layers of another one.

    Args:
        encoder: The larger encoder.
        layers: Number of layers, chosen by `alternate`; or the layers, counted from 0, in order.

    Raises:
        ConfigError: There are no such layers, or they cannot do without the others.
    """
    config = encoder.config
    count = layers if isinstance(layers, int) else len(layers)
    if config.block_order != list(range(config.layers)):
        raise ConfigError("layers cannot be chosen in a model whose layers share their weights.")
    if not 1 <= count <= config.layers:
        raise ConfigError(f"layers is {layers}, and the model has {config.layers} layers.")
    kept = alternate(config.layers, layers) if isinstance(layers, int) else list(layers)
    if kept != sorted({*kept}) or kept[0] < 0 or kept[-1] >= config.layers:
        raise ConfigError(
            f"layers is {kept}; list layers from 0 to {config.layers - 1} once, in their order."
        )
    moved = any(config.reach_of(old) != config.reach_of(new) for new, old in enumerate(kept))
    if moved or (config.pre_norm and kept[0]):
        raise ConfigError(
            f"layers {kept} cannot take the places {list(range(count))}: in this model, layers of "
            f"these places differ in how they attend or normalise. Use layers={list(range(count))}."
        )
    student = Encoder(replace(config, layers=count, layer_groups=None))
    for name, part in student.named_children():
        if name != "blocks":
            part.load_state_dict(encoder.get_submodule(name).state_dict())
    for block, layer in zip(student.blocks, kept, strict=True):
        block.load_state_dict(encoder.blocks[layer].state_dict())
    return student


def linear_map(inputs: Tensor, targets: Tensor) -> Dense:
    """Fit a `Dense` without activation that maps (n, width) to (n, dim) with least squared error.

    It is a ridge regression, so that there may be fewer rows than columns.
    """
    x, y = inputs.double(), targets.double()
    centred = x - x.mean(dim=0)
    gram = centred.T @ centred
    gram.diagonal().add_(1e-4 * gram.diagonal().mean() + 1e-12)
    weight = torch.linalg.solve(gram, centred.T @ (y - y.mean(dim=0))).T
    dense = Dense(x.shape[1], y.shape[1], activation=nn.Identity())
    with torch.no_grad():
        dense.linear.weight.copy_(weight)
        dense.linear.bias.copy_(y.mean(dim=0) - weight @ x.mean(dim=0))
    return dense


_TABLE = "embeddings.word.weight"


def extend_vocabulary(read: Checkpoint, old: TextTokenizer, new: TextTokenizer) -> Checkpoint:
    """Add an embedding for each new word piece to a model.

    The old tokenizer splits a new piece into old pieces; the new embedding is the mean of the
    embeddings of these old pieces. If the model has a head over the vocabulary, the matrix and the
    bias of the head are extended in the same way. ``read`` is not changed; the result shares its
    other tensors.

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
    """Return the pieces that only the new vocabulary has; refuse one that moves an old piece."""
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
