"""The published file formats of the BERT family, called layouts, and their ``config.json``.

A layout maps the settings of an encoder to keys of ``config.json``, and its parameters to names in
``model.safetensors``. The same maps are used for reading and writing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbert_search.config import from_mapping, to_mapping
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.encoder.config import EncoderConfig

Keys = Mapping[str, object]  # of config.json


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One published layout.

    In ``names`` and ``block_names``, the names of parameters omit the endings ``.weight`` and
    ``.bias``. If one parameter of `Encoder` has several published names, its rows are published in
    parts of equal size, one under each name, in order.
    """

    title: str  # name in messages and docs
    model_type: str  # value in ``config.json``
    architecture: str  # class of the encoder without a head in transformers
    prefix: str  # before the names of encoder parameters if the model has a head
    settings: Mapping[str, str]  # field of `EncoderConfig` -> key of ``config.json``
    defaults: Keys  # of each key that ``config.json`` may omit
    # Computes, from all keys, the fields that are not a copy of one key.
    read_more: Callable[[Keys], dict[str, object]] = lambda keys: {}
    # Computes, from all fields, the keys that are not a copy of one field.
    write_more: Callable[[EncoderConfig], dict[str, object]] = lambda config: {}
    required: Keys = field(default_factory=dict)  # key -> its only value that is supported
    names: Mapping[str, tuple[str, ...]]  # parameter outside the blocks -> published names
    # Published prefix of the names in a block. ``{block}`` is the number of the block. ALBERT has
    # ``{group}``, the number of a group of blocks that several layers share, and ``{inner}``, the
    # number of the block in the group.
    block: str
    block_names: Mapping[str, tuple[str, ...]]  # parameter of a block -> published names
    # Joint projections of queries, keys and values that are published head by head: first the rows
    # of query, key and value of the first attention head, then those of the second, and so on.
    per_head: frozenset[str] = frozenset()
    model_heads: tuple[str, ...] = ()  # prefixes of the published names of heads


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
_DISTILBERT_SETTINGS = {
    "vocab_size": "vocab_size",
    "pad_id": "pad_token_id",
    "hidden_size": "dim",
    "layers": "n_layers",
    "heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "activation": "activation",
    "max_positions": "max_position_embeddings",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
}


def _bert_base(settings: Mapping[str, str]) -> dict[str, object]:
    """Return the values of BERT-base, which are the defaults of `EncoderConfig`, by key."""
    return {key: getattr(EncoderConfig(), name) for name, key in settings.items()}


_DEFAULTS = _bert_base(_SETTINGS)
_EMBEDDINGS = {
    "embeddings.word": ("embeddings.word_embeddings",),
    "embeddings.position": ("embeddings.position_embeddings",),
    "embeddings.token_type": ("embeddings.token_type_embeddings",),
    "embeddings.norm": ("embeddings.LayerNorm",),
}

BERT = Layout(
    title="BERT",
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
    model_heads=("cls.", "classifier.", "qa_outputs."),
)


def _whole(keys: Keys, name: str) -> int:
    value = keys[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{name} is {value!r}; it must be a whole number.")


def _read_roberta(keys: Keys) -> dict[str, object]:
    # RoBERTa's first position is the padding id + 1.
    offset = _whole(keys, "pad_token_id") + 1
    return {
        "position_offset": offset,
        "max_positions": _whole(keys, "max_position_embeddings") - offset,
    }


ROBERTA = replace(
    BERT,
    title="RoBERTa",
    model_type="roberta",
    architecture="RobertaModel",
    prefix="roberta.",
    defaults=_DEFAULTS | {"vocab_size": 50265, "pad_token_id": 1},
    read_more=_read_roberta,
    write_more=lambda config: {
        "max_position_embeddings": config.max_positions + config.position_offset
    },
    model_heads=("lm_head.", "classifier.", "qa_outputs."),
)

XLM_ROBERTA = replace(
    ROBERTA,
    title="XLM-RoBERTa",
    model_type="xlm-roberta",
    architecture="XLMRobertaModel",
    defaults=_DEFAULTS | {"pad_token_id": 1},
)

MPNET = replace(
    ROBERTA,
    title="MPNet",
    model_type="mpnet",
    architecture="MPNetModel",
    prefix="mpnet.",
    settings={name: key for name, key in _SETTINGS.items() if name != "token_type_vocab"}
    | {"position_buckets": "relative_attention_num_buckets"},
    defaults=_DEFAULTS
    | {"vocab_size": 30527, "pad_token_id": 1, "relative_attention_num_buckets": 32},
    read_more=lambda keys: _read_roberta(keys) | {"token_type_vocab": 0},
    # transformers computes with these values, whatever config.json says.
    required={"pad_token_id": 1, "relative_attention_num_buckets": 32},
    names={
        **BERT.names,
        "position_biases": ("encoder.relative_attention_bias",),
    },
    block_names={
        **BERT.block_names,
        "attention.qkv": ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        "attention.output": ("attention.attn.o",),
        "attention_norm": ("attention.LayerNorm",),
    },
)

_MODERNBERT_SETTINGS = {
    "vocab_size": "vocab_size",
    "pad_id": "pad_token_id",
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "activation": "hidden_activation",
    "max_positions": "max_position_embeddings",
    "layer_norm_eps": "norm_eps",
    "hidden_dropout": "mlp_dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
}
_FULL, _LOCAL = "full_attention", "sliding_attention"


def _read_modernbert(keys: Keys) -> dict[str, object]:
    layers, every = _whole(keys, "num_hidden_layers"), _whole(keys, "global_attn_every_n_layers")
    if (types := keys.get("layer_types")) is not None:
        # transformers 5 names the attention of each layer, and older versions their period.
        known = types if isinstance(types, list) else []
        full = [n for n, kind in enumerate(known) if kind == _FULL]
        every = full[1] if len(full) > 1 else max(every, layers)
        if types != [_LOCAL if n % every else _FULL for n in range(layers)]:
            raise ConfigError(
                f"layer_types is {types!r:.200}; the native encoder needs {_FULL} in every nth "
                f"layer from the first, and {_LOCAL} in the others."
            )
    return {
        "gated": True,
        "pre_norm": True,
        "has_biases": False,
        "position_embeddings": False,
        "token_type_vocab": 0,
        "global_every": every,
        "local_reach": _whole(keys, "local_attention") // 2,
        "rotary_base": _rotary_base(keys, _FULL, "global_rope_theta"),
        "local_rotary_base": _rotary_base(keys, _LOCAL, "local_rope_theta"),
    }


def _rotary_base(keys: Keys, kind: str, old_key: str) -> float:
    stated = keys.get("rope_parameters") or {}
    one = (stated.get(kind) if isinstance(stated, Mapping) else stated) or {}
    if not isinstance(one, Mapping) or one.get("rope_type", "default") != "default":
        raise ConfigError(
            f"rope_parameters has {one!r} for {kind}; the native encoder needs rope_type 'default'."
        )
    base = one.get("rope_theta", keys[old_key])
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise ConfigError(f"rope_theta of {kind} is {base!r}; it must be a number.")
    return float(base)


def _write_modernbert(config: EncoderConfig) -> dict[str, object]:
    bases = {_FULL: config.rotary_base, _LOCAL: config.local_rotary_base}
    every = config.global_every
    return {
        "embedding_dropout": config.hidden_dropout,
        "local_attention": 2 * config.local_reach,
        "layer_types": [_LOCAL if n % every else _FULL for n in range(config.layers)],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()
        },
        # Keys of transformers 4.
        "global_attn_every_n_layers": every,
        "global_rope_theta": config.rotary_base,
        "local_rope_theta": config.local_rotary_base,
    }


MODERNBERT = Layout(
    title="ModernBERT",
    model_type="modernbert",
    architecture="ModernBertModel",
    prefix="model.",
    settings=_MODERNBERT_SETTINGS,
    defaults={
        "vocab_size": 50368,
        "pad_token_id": 50283,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
        "mlp_dropout": 0.0,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "local_attention": 128,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160_000.0,
        "local_rope_theta": 10_000.0,
    },
    read_more=_read_modernbert,
    write_more=_write_modernbert,
    required={
        "norm_bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "rope_scaling": None,
    },
    names={
        "embeddings.word": ("embeddings.tok_embeddings",),
        "embeddings.norm": ("embeddings.norm",),
        "final_norm": ("final_norm",),
    },
    block="layers.{block}.",
    block_names={
        "attention.qkv": ("attn.Wqkv",),
        "attention.output": ("attn.Wo",),
        "attention_norm": ("attn_norm",),
        "up": ("mlp.Wi",),
        "down": ("mlp.Wo",),
        "output_norm": ("mlp_norm",),
    },
    model_heads=("head.", "decoder.", "classifier."),
)

ALBERT = replace(
    BERT,
    title="ALBERT",
    model_type="albert",
    architecture="AlbertModel",
    prefix="albert.",
    settings=_SETTINGS
    | {
        "embedding_size": "embedding_size",
        "layer_groups": "num_hidden_groups",
        "inner_layers": "inner_group_num",
    },
    defaults=_DEFAULTS
    | {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    names=_EMBEDDINGS
    | {"embeddings.project": ("encoder.embedding_hidden_mapping_in",), "pooler": ("pooler",)},
    block="encoder.albert_layer_groups.{group}.albert_layers.{inner}.",
    block_names={
        "attention.qkv": ("attention.query", "attention.key", "attention.value"),
        "attention.output": ("attention.dense",),
        "attention_norm": ("attention.LayerNorm",),
        "up": ("ffn",),
        "down": ("ffn_output",),
        "output_norm": ("full_layer_layer_norm",),
    },
    model_heads=("predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
)

DISTILBERT = Layout(
    title="DistilBERT",
    model_type="distilbert",
    architecture="DistilBertModel",
    prefix="distilbert.",
    settings=_DISTILBERT_SETTINGS,
    defaults=_bert_base(_DISTILBERT_SETTINGS) | {"n_layers": 6},
    read_more=lambda keys: {"token_type_vocab": 0},
    names=_EMBEDDINGS,
    block="transformer.layer.{block}.",
    block_names={
        "attention.qkv": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "attention.output": ("attention.out_lin",),
        "attention_norm": ("sa_layer_norm",),
        "up": ("ffn.lin1",),
        "down": ("ffn.lin2",),
        "output_norm": ("output_layer_norm",),
    },
    model_heads=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
)


def _read_electra(keys: Keys) -> dict[str, object]:
    width = keys["embedding_size"]
    return {"embedding_size": None if width == keys["hidden_size"] else width}


ELECTRA = replace(
    BERT,
    title="ELECTRA",
    model_type="electra",
    architecture="ElectraModel",
    prefix="electra.",
    defaults=_DEFAULTS
    | {
        "embedding_size": 128,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    },
    read_more=_read_electra,
    write_more=lambda config: {"embedding_size": config.table_size},
    names=_EMBEDDINGS | {"embeddings.project": ("embeddings_project",)},
    model_heads=(
        "discriminator_predictions.",
        "generator_predictions.",
        "generator_lm_head.",
        "sequence_summary.",
        "classifier.",
        "qa_outputs.",
    ),
)


def _read_deberta(keys: Keys) -> dict[str, object]:
    terms = keys["pos_att_type"]
    terms = terms.lower().split("|") if isinstance(terms, str) else terms
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise ConfigError(f"pos_att_type is {terms!r}; it must be a list such as ['c2p', 'p2c'].")
    if (width := keys.get("embedding_size", keys["hidden_size"])) != keys["hidden_size"]:
        raise ConfigError(f"embedding_size is {width!r}; the native encoder needs hidden_size.")
    most = _whole(keys, "max_relative_positions")
    most = most if most > 0 else _whole(keys, "max_position_embeddings")
    return {
        "position_embeddings": keys["position_biased_input"],
        "key_bias": False,
        "attention_terms": ("c2c", *(term.strip() for term in terms)),
        "relative_positions": most if keys["relative_attention"] else 0,
    }


def _write_deberta(config: EncoderConfig) -> dict[str, object]:
    return {
        "position_biased_input": config.position_embeddings,
        "relative_attention": config.relative_positions > 0,
        "max_relative_positions": config.relative_positions or -1,
        "pos_att_type": [term for term in config.attention_terms if term != "c2c"],
    }


DEBERTA = replace(
    BERT,
    title="DeBERTa (v1)",
    model_type="deberta",
    architecture="DebertaModel",
    prefix="deberta.",
    defaults=_DEFAULTS
    | {
        "vocab_size": 50265,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "position_biased_input": True,
        "relative_attention": False,
        "max_relative_positions": -1,
        "pos_att_type": [],
    },
    read_more=_read_deberta,
    write_more=_write_deberta,
    required={"talking_head": False},
    names=_EMBEDDINGS | {"distances": ("encoder.rel_embeddings",)},
    block_names={
        **BERT.block_names,
        "attention.qkv": ("attention.self.in_proj",),
        "attention.query_bias": ("attention.self.q_bias",),
        "attention.value_bias": ("attention.self.v_bias",),
        "attention.position_key": ("attention.self.pos_proj",),
        "attention.position_query": ("attention.self.pos_q_proj",),
    },
    per_head=frozenset({"attention.qkv.weight"}),
    model_heads=(
        # The position table of the mask decoder. It is a part of a head only in models whose input
        # has no position embeddings.
        "embeddings.position_embeddings.",
        "cls.",
        "lm_predictions.",
        "pooler.",
        "classifier.",
        "qa_outputs.",
    ),
)

LAYOUTS = {
    layout.model_type: layout
    for layout in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        MPNET,
        MODERNBERT,
        ALBERT,
        DISTILBERT,
        ELECTRA,
        DEBERTA,
    )
}
_TITLES = [layout.title for layout in LAYOUTS.values()]
SUPPORTED = f"{', '.join(_TITLES[:-1])} and {_TITLES[-1]}"
"""The architectures that the native encoder computes; the docs list the same ones."""


_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def encoder_settings(path: Path, keys: Keys) -> EncoderConfig:
    """Return the encoder's settings, without a pooler, from the keys of a ``config.json``.

    The weights tell whether there is a pooler. An architecture that `Encoder` does not implement is
    refused as ModelError.
    """
    if not isinstance(keys.get("model_type"), str):
        raise ModelError(f'{path} names no "model_type"; add it, such as "model_type": "bert".')
    if keys["model_type"] not in LAYOUTS:
        raise ModelError(
            f"{path} is of type {keys['model_type']!r}; the native encoder supports {SUPPORTED}."
        )
    try:
        return from_settings(keys)
    except ConfigError as error:
        raise ModelError(f"{path}: {error}") from error


def known_settings(keys: Mapping[str, object]) -> EncoderConfig | None:
    """Return the settings of a ``config.json``; None if `Encoder` does not implement them."""
    if str(keys.get("model_type")) not in LAYOUTS:
        return None
    try:
        return from_settings(keys)
    except ConfigError:
        return None


def most_positions(keys: Mapping[str, object]) -> int | None:
    """Most tokens of a text by a ``config.json``; None if there is no limit or it is unknown."""
    config = known_settings(keys)
    return config.max_positions if config and config.position_embeddings else None


def from_settings(keys: Mapping[str, object]) -> EncoderConfig:
    """Translate the keys of a ``config.json`` whose ``model_type`` is in `LAYOUTS`."""
    layout = LAYOUTS[str(keys["model_type"])]
    keys = {**layout.defaults, **{key: value for key, value in keys.items() if value is not None}}
    for key, value in layout.required.items():
        if keys.get(key, value) != value:
            raise ConfigError(f"{key} is {keys[key]!r}; the native encoder needs {value!r}.")
    values = {name: keys[key] for name, key in layout.settings.items()}
    activation = values["activation"]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise ConfigError(
            f"The activation {activation!r} is unknown; known: {', '.join(_ACTIVATIONS)}."
        )
    values |= layout.read_more(keys)
    values |= {"activation": _ACTIVATIONS[activation], "layout": layout.model_type}
    return from_mapping(EncoderConfig, values)


def to_settings(config: EncoderConfig) -> dict[str, object]:
    """Translate a configuration to the keys of a ``config.json``.

    The keys are translated back, to check that no setting is lost. Two settings have no key:
    ``pooler`` and ``causal``. A reader knows from the weights whether there is a pooler, so the
    layout must have a name for these weights. ``causal`` is for tests only, and is not checked.
    """
    layout = LAYOUTS[config.layout]
    keys = _write_keys(config, layout)
    read_back = to_mapping(from_settings(keys))
    read_back |= {"pooler": config.pooler and "pooler" in layout.names, "causal": config.causal}
    for name, value in to_mapping(config).items():
        if read_back[name] != value:
            raise ConfigError(
                f"The layout {config.layout!r} cannot hold {name} = {value!r}, "
                f"only {read_back[name]!r}."
            )
    return keys


def _write_keys(config: EncoderConfig, layout: Layout) -> dict[str, object]:
    keys: dict[str, object] = {
        "architectures": [layout.architecture],
        "model_type": layout.model_type,
    }
    keys |= {key: getattr(config, name) for name, key in layout.settings.items()}
    # Two published names mean "gelu_tanh". The reversed order makes the first of them win.
    published = {own_name: name for name, own_name in reversed(_ACTIVATIONS.items())}
    keys[layout.settings["activation"]] = published[config.activation]
    return keys | layout.write_more(config)
