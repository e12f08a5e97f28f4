"""Which model folders this package's own encoder computes; others go through the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sbert_search.encoder.settings import read_settings
from sbert_search.errors import ModelError
from sbert_search.models.folder import POOLING_KEYS, ModelFolder, Module
from sbert_search.models.heads import ACTIVATIONS, PAIR_HEADS

_TANH = "torch.nn.modules.activation.Tanh"
# Settings that the native modules read, by kind, and those that change nothing at this value.
_READ = {
    "Transformer": {"max_seq_length", "do_lower_case"},
    "Pooling": {
        "word_embedding_dimension",
        "embedding_dimension",
        "pooling_mode",
        *POOLING_KEYS.values(),
    },
    "Dense": {"in_features", "out_features", "bias", "activation_function"},
    "Normalize": set[str](),
}
_HIDDEN = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_PLAIN: dict[tuple[str, str], Any] = {
    ("Transformer", "transformer_task"): "feature-extraction",
    ("Transformer", "modality_config"): _HIDDEN,
    ("Transformer", "module_output_name"): "token_embeddings",
    ("Pooling", "include_prompt"): True,
    ("Dense", "module_input_name"): "sentence_embedding",
    ("Dense", "module_output_name"): "sentence_embedding",
    ("Dense", "use_residual"): False,
    ("Normalize", "module_input_name"): "sentence_embedding",
    ("Normalize", "module_output_name"): "sentence_embedding",
}


def require_kind(folder: ModelFolder, kind: str) -> None:
    """Refuse a folder that says it is a model of another kind.

    Args:
        folder: As read.
        kind: SentenceTransformer or CrossEncoder.

    Raises:
        ModelError: It is another kind, or encodes queries and documents by different modules.
    """
    got = folder.settings.get("model_type") or kind
    if got != kind:
        raise ModelError(f"{folder.path} is a {got}; a {kind} is needed here.")
    if any(module.kind == "Router" for module in folder.description.modules):
        raise ModelError(
            f"{folder.path} has a Router, so queries and documents pass different modules; this "
            "package takes models that are one for both."
        )


def why_not_native(folder: ModelFolder) -> str | None:
    """Say what in a bi-encoder's folder our encoder cannot compute; None: nothing."""
    kinds = [module.kind for module in folder.description.modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        return f"the modules {', '.join(kinds)} are not encoder, pooling, dense and normalise"
    return _why_no_native_encoder(folder) or _unusual(folder.description.modules)


def why_no_native_pairs(folder: ModelFolder) -> str | None:
    """Say what in a cross-encoder's folder our encoder cannot compute; None: nothing."""
    modules = folder.description.modules
    bare = not (folder.path / "modules.json").is_file()
    if not bare and [module.kind for module in modules] != ["Transformer"]:
        return f"the modules {', '.join(m.kind for m in modules)} are not one Transformer"
    if reason := _why_no_native_encoder(folder):
        return reason
    architecture = PAIR_HEADS[folder.description.architecture].architecture
    if folder.transformer.get("architectures") != [architecture]:
        return f"its architecture is {folder.transformer.get('architectures')}"
    if folder.description.default_prompt_name:
        return "it puts a prompt before each pair"
    path = pair_activation(folder)
    return None if path is None or path in ACTIVATIONS else f"its activation is {path}"


def pair_activation(folder: ModelFolder) -> str | None:
    """Find the class path of a cross-encoder's activation where v3, v4 or v6 put it."""
    nested = folder.transformer.get("sentence_transformers") or {}
    found = (
        folder.settings.get("activation_fn"),
        nested.get("activation_fn"),
        folder.transformer.get("sbert_ce_default_activation_function"),
    )
    return next((path for path in found if path), None)


def _why_no_native_encoder(folder: ModelFolder) -> str | None:
    try:
        read_settings(folder.transformer_path / "config.json")
    except ModelError as error:
        return str(error)
    if not any((folder.transformer_path / f).is_file() for f in ("tokenizer.json", "vocab.txt")):
        return "there is neither tokenizer.json nor vocab.txt"
    if folder.tokenizer.get("truncation_side", "right") != "right":
        return "the tokenizer cuts texts on the left"
    return None


def _unusual(modules: Sequence[Module]) -> str | None:
    """Name a setting with a value that the native modules do not know."""
    for module in modules:
        path = module.settings.get("activation_function", _TANH)
        if path not in ACTIVATIONS:
            return f"{module.kind} has the activation {path}"
        for name, value in module.settings.items():
            plain = _PLAIN.get((module.kind, name))
            if name not in _READ[module.kind] and value not in (plain, None, {}):
                return f"{module.kind} has the setting {name} = {value!r}"
    return None
