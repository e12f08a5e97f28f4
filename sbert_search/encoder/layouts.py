"""The published file layouts of the BERT family, as data.

A layout says how the settings of an encoder are called in ``config.json`` and how its parameters
are called in ``model.safetensors``. Everything is reversible: what reads also writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sbert_search.encoder.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One published layout.

    Names leave out the endings ``.weight`` and ``.bias``. Several names on their side stand for
    one parameter of ours: theirs are its equal slices, top to bottom.

    Attributes:
        model_type: Value of ``model_type`` in ``config.json``.
        architecture: Their class of the bare encoder.
        prefix: Before every name when the encoder sits in a model with a head.
        settings: Field of `EncoderConfig` to key of ``config.json``.
        defaults: Their value of a key that ``config.json`` leaves out.
        read_more: Fields of `EncoderConfig` that are no plain copy of one key, from all keys.
        write_more: Keys that are no plain copy of one field.
        required: Keys of ``config.json`` with the only value this encoder can compute.
        names: Our name to theirs, outside the blocks.
        block: Their prefix of a block; ``{block}``, or ``{group}`` and ``{inner}``, count.
        block_names: Our name inside a block to theirs.
        per_head: Our names whose rows are ordered head by head on their side.
        heads: Beginnings of names that belong to heads, not to the encoder.
    """

    model_type: str
    architecture: str
    prefix: str
    settings: Mapping[str, str]
    defaults: Mapping[str, Any]
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda keys: {}
    write_more: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}
    required: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]]
    block: str
    block_names: Mapping[str, tuple[str, ...]]
    per_head: frozenset[str] = frozenset()
    heads: tuple[str, ...] = ()


_SETTINGS = {
    "vocab_size": "vocab_size",
    "pad_id": "pad_token_id",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "activation": "hidden_act",
    "max_positions": "max_position_embeddings",
    "token_type_vocab": "type_vocab_size",
    "layer_norm_eps": "layer_norm_eps",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "initializer_range": "initializer_range",
}
_DEFAULTS = {
    "vocab_size": 30522,
    "pad_token_id": 0,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
_EMBEDDINGS = {
    "embeddings.word": ("embeddings.word_embeddings",),
    "embeddings.position": ("embeddings.position_embeddings",),
    "embeddings.token_type": ("embeddings.token_type_embeddings",),
    "embeddings.norm": ("embeddings.LayerNorm",),
}

BERT = Layout(
    model_type="bert",
    architecture="BertModel",
    prefix="bert.",
    settings=_SETTINGS,
    defaults=_DEFAULTS,
    required={"position_embedding_type": "absolute", "is_decoder": False},
    names=_EMBEDDINGS | {"pooler": ("pooler.dense",)},
    block="encoder.layer.{block}.",
    block_names={
        "attention.qkv": (
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
        ),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "up": ("intermediate.dense",),
        "down": ("output.dense",),
        "output_norm": ("output.LayerNorm",),
    },
    heads=("cls.", "classifier.", "qa_outputs."),
)

LAYOUTS = {layout.model_type: layout for layout in (BERT,)}
