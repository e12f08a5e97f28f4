"""Decide which model folders the native encoder supports; sentence-transformers runs the others."""

from __future__ import annotations

from collections.abc import Sequence

from sbert_search.errors import ModelError
from sbert_search.models.encoder.config import MOST_LAYERS
from sbert_search.models.encoder.layouts import encoder_settings
from sbert_search.models.heads import ACTIVATIONS, SEQUENCE_HEADS
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.modules import POOLING_KEYS, Module, only_limits, read_object

_LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers")
_TANH = "torch.nn.modules.activation.Tanh"
# Settings that the native modules read, by kind of module.
_READ = {
    "Transformer": {"max_seq_length", "do_lower_case", "processing_kwargs"},
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
# Prefixes of the names, in lower case, of tokenizer classes that return no segment ids in
# transformers 5, and of the architectures with such tokenizers.
_WITHOUT_SEGMENTS = ("albert", "roberta", "xlm", "mpnet", "distilbert")
# Settings that the native modules do not read, each with its neutral value. A setting with its
# neutral value does not change the result.
_PLAIN: dict[tuple[str, str], object] = {
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
    """Refuse a folder that is not of ``kind``, SentenceTransformer or CrossEncoder."""
    # Versions of sentence-transformers before 6 write no model_type, and modules.json only for a
    # bi-encoder. A bi-encoder trained from a cross-encoder can still name the activation.
    is_pairs = pair_activation(folder) and not (folder.path / "modules.json").is_file()
    stated = folder.settings.get("model_type") or ("CrossEncoder" if is_pairs else kind)
    if stated != kind:
        remedy = (
            "; it can rerank hits (Reranker, `search --rerank`)" if stated == "CrossEncoder" else ""
        )
        raise ModelError(f"{folder.path} is a {stated}{remedy}. A {kind} is needed here.")


def require_loadable(folder: ModelFolder) -> None:
    """Refuse a folder without a tokenizer, or whose number of layers is out of range."""
    # Without this check, sentence-transformers would make a tokenizer without a vocabulary.
    folder.tokenizer_sha256()
    for name, value in folder.transformer.items():
        if name in _LAYERS and not (isinstance(value, int) and 1 <= value <= MOST_LAYERS):
            raise ModelError(
                f"{folder.transformer_path / 'config.json'}: {name} is {value!r}; it must be from "
                f"1 to {MOST_LAYERS:,}."
            )


def why_not_native(folder: ModelFolder) -> str | None:
    """Return why the native encoder cannot compute the bi-encoder in a folder; None if it can."""
    kinds = [module.kind for module in folder.description.modules]
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Dense", "Normalize"}:
        return (
            f"its modules are {', '.join(kinds)}, and the native encoder computes only Transformer "
            "and Pooling, followed by any Dense and Normalize"
        )
    return _why_no_native_encoder(folder) or _unusual(folder.description.modules)


def why_no_native_pairs(folder: ModelFolder) -> str | None:
    """Return why the native encoder cannot compute a folder's cross-encoder; None if it can."""
    head = SEQUENCE_HEADS.get(folder.description.architecture)
    if reason := why_no_native_head(folder, "" if head is None else head.architecture):
        return reason
    if folder.description.default_prompt_name:
        return "it puts a prompt before each pair"
    path = pair_activation(folder)
    return None if path is None or path in ACTIVATIONS else f"its activation is {path}"


def why_no_native_head(folder: ModelFolder, architecture: str) -> str | None:
    """Return why the native encoder cannot compute an ``architecture``; None if it can."""
    modules = folder.description.modules
    bare = not (folder.path / "modules.json").is_file()
    if not bare and [module.kind for module in modules] != ["Transformer"]:
        return f"the modules {', '.join(m.kind for m in modules)} are not one Transformer"
    if reason := _why_no_native_encoder(folder):
        return reason
    if folder.transformer.get("architectures") != [architecture]:
        return f"its architecture is {folder.transformer.get('architectures')}"
    head = SEQUENCE_HEADS[folder.description.architecture]
    stated = folder.transformer.get(head.activation_key) or "gelu"
    # All heads of a layout have its norm; without one, heads of tokens have no activation.
    if (architecture == head.architecture or head.norm) and stated != "gelu":
        return f"{head.activation_key} is {stated!r}, and the native encoder supports only gelu"
    return None


def gets_segment_ids(folder: ModelFolder) -> bool:
    """Whether sentence-transformers passes segment ids to a cross-encoder."""
    names = folder.tokenizer.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    name = folder.tokenizer.get("tokenizer_class") or folder.description.architecture
    return not str(name).lower().startswith(_WITHOUT_SEGMENTS)


def pair_activation(folder: ModelFolder) -> str | None:
    """Class path of a cross-encoder's activation, None if no file names it."""
    nested = folder.transformer.get("sentence_transformers")
    # Versions 3, 4 and 6 of sentence-transformers write the path to different places.
    paths = (
        folder.settings.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        folder.transformer.get("sbert_ce_default_activation_function"),
    )
    return next((str(path) for path in paths if path), None)


def _why_no_native_encoder(folder: ModelFolder) -> str | None:
    try:
        encoder_settings(folder.transformer_path / "config.json", folder.transformer)
    except ModelError as error:
        return str(error).removesuffix(".")
    if not any((folder.transformer_path / f).is_file() for f in ("tokenizer.json", "vocab.txt")):
        return "its vocabulary is in neither tokenizer.json nor vocab.txt"
    processing = folder.description.modules[0].settings.get("processing_kwargs")
    if not only_limits(folder.path, processing):
        return f"Transformer has the setting processing_kwargs = {processing!r}"
    if _truncation_side(folder) != "right":
        return "the tokenizer cuts texts on the left"
    if folder.tokenizer.get("split_special_tokens"):
        return "the tokenizer splits special tokens that occur in texts"
    return None


def _truncation_side(folder: ModelFolder) -> object:
    """Return the side on which transformers truncates texts: "left" or "right"."""
    if side := folder.tokenizer.get("truncation_side"):
        return side
    path = folder.transformer_path / "tokenizer.json"
    if not path.is_file() or b'"Left"' not in path.read_bytes():  # a search is faster than parsing
        return "right"
    truncation = read_object(path).get("truncation")
    side = truncation.get("direction") if isinstance(truncation, dict) else None
    return str(side or "right").lower()


def _unusual(modules: Sequence[Module]) -> str | None:
    """Return which setting the native modules do not support; None if they support all."""
    for module in modules:
        path = module.settings.get("activation_function", _TANH)
        if path not in ACTIVATIONS:
            return f"{module.kind} has the activation {path}"
        for name, value in module.settings.items():
            plain = _PLAIN.get((module.kind, name))
            if name not in _READ[module.kind] and value not in (plain, None, {}):
                return f"{module.kind} has the setting {name} = {value!r}"
    return None
