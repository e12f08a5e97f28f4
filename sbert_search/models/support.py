"""Which model folders this package's own encoder computes; others go through the library."""

from __future__ import annotations

from typing import Any

from sbert_search.encoder.settings import read_settings
from sbert_search.errors import ModelError
from sbert_search.models.folder import POOLING_KEYS, ModelFolder, Module
from sbert_search.models.heads import ACTIVATIONS

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
    "Dense": {"in_features", "out_features", "bias"},
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


def why_not_native(folder: ModelFolder) -> str | None:
    """Say what in a folder this package's own encoder cannot compute; None: nothing."""
    modules = folder.description.modules
    kinds = [module.kind for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        return f"the modules {', '.join(kinds)} are not encoder, pooling, dense and normalise"
    try:
        read_settings(folder.transformer_path / "config.json")
    except ModelError as error:
        return str(error)
    if not any((folder.transformer_path / f).is_file() for f in ("tokenizer.json", "vocab.txt")):
        return "there is neither tokenizer.json nor vocab.txt"
    if folder.tokenizer.get("truncation_side", "right") != "right":
        return "the tokenizer cuts texts on the left"
    for module in modules:
        if unusual := _unusual(module):
            return f"{module.kind} has the setting {unusual}"
    return None


def _unusual(module: Module) -> str | None:
    """Name a setting with a value that the native modules do not know."""
    kind, settings = module.kind, dict(module.settings)
    if settings.pop("activation_function", _TANH) not in ACTIVATIONS:
        return f"activation_function = {module.settings['activation_function']}"
    for name, value in settings.items():
        if name not in _READ[kind] and value not in (_PLAIN.get((kind, name)), None, {}):
            return f"{name} = {value!r}"
    return None
