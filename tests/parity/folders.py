"""Small random model folders of many kinds, as the two libraries write them."""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    WeightedLayerPooling,
)
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from tests.models.tiny import PAIRS, TEXTS, TOKENS, WORDS, tiny_tokenizer

POSITIONS = 40
_LIMIT = 24  # tokens of a text
_SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}
_DISTILBERT: dict[str, Any] = {
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": POSITIONS,
    "initializer_range": 0.3,
}
# Family to prefix of its classes in transformers, its shape, and the kind of its pieces.
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("Bert", _SHAPE, "words"),
    "roberta": ("Roberta", {**_SHAPE, "type_vocab_size": 1}, "bytes"),
    "distilbert": ("DistilBert", _DISTILBERT, "words"),
    "albert": ("Albert", {**_SHAPE, "embedding_size": 8}, "unigrams"),
    "electra": ("Electra", {**_SHAPE, "embedding_size": 8}, "words"),
    "deberta": (
        "Deberta",
        {
            **_SHAPE,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
        },
        "words",
    ),
    "mpnet": ("MPNet", _SHAPE, "bytes"),
    "xlm-roberta": ("XLMRoberta", {**_SHAPE, "type_vocab_size": 1}, "sentencepieces"),
    "nomic_bert": ("NomicBert", _SHAPE, "words"),
    "modernbert": ("ModernBert", _SHAPE, "bytes"),
}


def bare(folder: Path, family: str, task: str = "Model", **changes: Any) -> Path:
    """Write a folder of transformers alone: config.json, weights, tokenizer."""
    name, shape, pieces = FAMILIES[family]
    as_in_roberta = pieces in ("bytes", "sentencepieces")
    ids = (0, 2) if as_in_roberta else (2, 3)
    special = {"pad_token_id": int(as_in_roberta)}
    special |= dict(zip(("bos_token_id", "eos_token_id"), ids, strict=True))
    special |= dict(zip(("cls_token_id", "sep_token_id"), ids, strict=True))
    make = {
        "words": _words,
        "bytes": _bytes,
        "unigrams": _unigrams,
        "sentencepieces": _sentencepieces,
    }
    vocabulary = make[pieces](folder)
    if family == "roberta":
        edit(folder, "tokenizer_config.json", tokenizer_class="RobertaTokenizer")
    config = getattr(transformers, f"{name}Config")(
        **{**shape, **special, "vocab_size": vocabulary, **changes}
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}{task}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.eval().save_pretrained(folder)
    return folder


def listed(folder: Path, *modules: Any, **settings: Any) -> Path:
    """Write a bare BERT with modules behind it, as sentence-transformers saves them."""
    parts = [Transformer(str(bare(folder / "bare", "bert"))), *modules]
    torch.manual_seed(1)
    SentenceTransformer(modules=parts, device="cpu", **settings).save(str(folder / "listed"))
    return folder / "listed"


def pooled(mode: str | tuple[str, ...]) -> Callable[[Path], Path]:
    """Make the maker of a BERT with this pooling."""
    return lambda folder: listed(folder, Pooling(16, pooling_mode=mode))


def edit(folder: Path, name: str, **changes: Any) -> Path:
    """Change keys of a JSON file; None takes one away."""
    path = folder / name
    keys = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    keys = {key: value for key, value in {**keys, **changes}.items() if value is not None}
    path.write_text(json.dumps(keys), "utf-8")
    return folder


def rename(folder: Path, name_of: Callable[[str], str | None]) -> Path:
    """Give tensors other names; None takes one away."""
    file = folder / "model.safetensors"
    tensors = {name_of(name): tensor.clone() for name, tensor in load_file(file).items()}
    save_file({name: t for name, t in tensors.items() if name}, file, {"format": "pt"})
    return folder


def change_tensors(folder: Path, changes: Mapping[str, torch.Tensor]) -> Path:
    """Put tensors in, or in place of others."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), **changes}, file, {"format": "pt"})
    return folder


def half(folder: Path) -> Path:
    file = bare(folder, "bert") / "model.safetensors"
    halves = {name: tensor.half() for name, tensor in load_file(file).items()}
    save_file(halves, file, {"format": "pt"})
    return folder


def sharded(folder: Path) -> Path:
    model = transformers.AutoModel.from_pretrained(bare(folder, "bert"))
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="4KB")
    assert (folder / "model.safetensors.index.json").is_file()
    return folder


def old_norms(folder: Path) -> Path:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    return rename(
        bare(folder, "bert"),
        lambda name: next((name.replace(n, o) for n, o in old.items() if n in name), name),
    )


def without_pooler(folder: Path) -> Path:
    return rename(bare(folder, "bert"), lambda name: None if "pooler" in name else name)


def old_buffers(folder: Path) -> Path:
    numbers = torch.arange(POSITIONS)[None]
    return change_tensors(bare(folder, "bert"), {"embeddings.position_ids": numbers})


def two_files(folder: Path) -> Path:
    """Take tokenizer.json away from a RoBERTa, and leave vocab.json and merges.txt."""
    pieces = json.loads((bare(folder, "roberta") / "tokenizer.json").read_text("utf-8"))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in pieces["merges"]]
    (folder / "vocab.json").write_text(json.dumps(pieces["vocab"]), "utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    (folder / "tokenizer.json").unlink()
    return folder


def without_limit(folder: Path) -> Path:
    return edit(bare(folder, "roberta"), "tokenizer_config.json", model_max_length=None)


def legacy_settings(folder: Path, name: str = "sentence_roberta_config.json") -> Path:
    """Keep the settings of a Transformer under the name that old versions gave the file."""
    folder = listed(folder, Pooling(16))
    (folder / "sentence_bert_config.json").unlink()
    (folder / name).write_text('{"max_seq_length": 7, "do_lower_case": true}', "utf-8")
    return folder


def cut_on_the_left(folder: Path) -> Path:
    folder = listed(folder, Pooling(16))
    cut = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    return edit(folder, "tokenizer.json", truncation=cut)


def cased_by_settings(folder: Path, **settings: Any) -> Path:
    """Let tokenizer_config.json contradict tokenizer.json, which lower-cases."""
    folder = listed(folder, Pooling(16))
    assert json.loads((folder / "tokenizer.json").read_text("utf-8"))["normalizer"]["lowercase"]
    return edit(folder, "tokenizer_config.json", do_lower_case=False, **settings)


def prefix_by_settings(folder: Path) -> Path:
    return edit(bare(folder, "roberta"), "tokenizer_config.json", add_prefix_space=True)


def long_limit(folder: Path) -> Path:
    folder = listed(folder, Pooling(16))
    return edit(folder, "sentence_bert_config.json", max_seq_length=10 * POSITIONS)


def processed(folder: Path, **processing: dict[str, Any]) -> Path:
    """Let the Transformer have limits of its own, as sentence-transformers 6 saves them."""
    folder = listed(folder, Pooling(16))
    return edit(folder, "sentence_bert_config.json", processing_kwargs=processing)


def weighted_layers(folder: Path) -> Path:
    weighted = WeightedLayerPooling(16, num_hidden_layers=2, layer_start=1)
    with torch.no_grad():
        weighted.layer_weights.copy_(torch.tensor([1.0, 3.0]))
    folder = listed(folder, weighted, Pooling(16))
    return edit(folder, "config.json", output_hidden_states=True)


def static(folder: Path, *later: Any) -> Path:
    backend = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(TOKENS)}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    part = StaticEmbedding(backend, embedding_dim=12)
    SentenceTransformer(modules=[part, *later], device="cpu").save(str(folder))
    return folder


def vocabulary_quantized(folder: Path) -> Path:
    """Write the table as model2vec does if several tokens share a row, each with a weight."""
    (file,) = static(folder).rglob("model.safetensors")
    n, table = len(TOKENS), load_file(file)["embedding.weight"]
    weights = torch.linspace(0.1, 2, n, dtype=torch.float64)
    tensors = {"embeddings": table[:7].half(), "mapping": torch.arange(n) % 7, "weights": weights}
    save_file(tensors, file)
    return folder


def _words(folder: Path) -> int:
    """Write the pieces of a BERT, as the file vocab.txt alone."""
    tiny_tokenizer(folder, _LIMIT).save(folder)
    edit(folder, "tokenizer_config.json", model_input_names=None)
    return len(TOKENS)


def _unigrams(folder: Path) -> int:
    """Write the pieces of an ALBERT."""
    scores = _scores("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    make: Any = transformers.AlbertTokenizer
    make(vocab=scores, model_max_length=_LIMIT).save_pretrained(folder)
    return len(scores)


def _sentencepieces(folder: Path) -> int:
    """Write the pieces of an XLM-RoBERTa, which adds <mask> after them."""
    scores = _scores("<s>", "<pad>", "</s>", "<unk>")
    make: Any = transformers.XLMRobertaTokenizer
    make(vocab=scores, model_max_length=_LIMIT).save_pretrained(folder)
    return len(scores) + 1


def _scores(*special: str) -> list[tuple[str, float]]:
    words = [f"\u2581{word}" for word in WORDS if len(word) > 1]
    pieces = [*special, "\u2581", *string.ascii_lowercase, *words]
    return [(piece, -5.0 - n / 10) for n, piece in enumerate(pieces)]


def _bytes(folder: Path) -> int:
    """Train the byte-level pieces of a RoBERTa; <pad> has the id 1."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*TEXTS, *(text for pair in PAIRS for text in pair)], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    special = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>"}
    special |= {name: f"<{name}>" for name in ("pad", "unk", "mask")}
    make: Any = transformers.PreTrainedTokenizerFast
    tokenizer = make(
        tokenizer_object=backend,
        model_max_length=_LIMIT,
        **{f"{name}_token": token for name, token in special.items()},
    )
    tokenizer.save_pretrained(folder)
    return 300


BI_ENCODERS: dict[str, Callable[[Path], Path]] = {
    **{family: partial(bare, family=family) for family in FAMILIES},
    "roberta of two files": two_files,
    "roberta without a limit": without_limit,
    "masked language model": lambda folder: bare(folder, "bert", "ForMaskedLM"),
    "without pooler": without_pooler,
    "old norms": old_norms,
    "old buffers": old_buffers,
    "half precision": half,
    "sharded": sharded,
    "cls": pooled("cls"),
    "max": pooled("max"),
    "mean_sqrt_len_tokens": pooled("mean_sqrt_len_tokens"),
    "weightedmean": pooled("weightedmean"),
    "lasttoken": pooled("lasttoken"),
    "cls+max+mean": pooled(("cls", "max", "mean")),
    "dense": lambda folder: listed(folder, Pooling(16), Dense(16, 12), Normalize()),
    "other normalised": lambda folder: listed(
        folder, Pooling(16), Normalize(module_output_name="other")
    ),
    "tokens normalised": lambda folder: listed(
        folder, Pooling(16), Normalize(module_input_name="token_embeddings")
    ),
    "layer norm": lambda folder: listed(folder, Pooling(16), LayerNorm(16), Dropout(0.2)),
    "weighted layers": weighted_layers,
    "static": static,
    "static with modules": lambda folder: static(
        folder, Dense(12, 10), Dense(10, 8, bias=False, activation_function=None), Normalize()
    ),
    "static with a residual": lambda folder: static(folder, Dense(12, 12, use_residual=True)),
    "static of shared rows": vocabulary_quantized,
    "prompts": lambda folder: listed(
        folder, Pooling(16), prompts={"query": "the red "}, default_prompt_name="query"
    ),
    "prompt left out": lambda folder: listed(
        folder,
        Pooling(16, include_prompt=False),
        prompts={"query": "the red "},
        default_prompt_name="query",
    ),
    "truncated": lambda folder: listed(folder, Pooling(16), truncate_dim=5),
    "legacy settings": legacy_settings,
    "long limit": long_limit,
    "cut on the left": cut_on_the_left,
    "limit of texts": partial(processed, text={"max_length": 6, "truncation": True}),
    "limit above": partial(processed, text={"max_length": 30}, common={}),
    "limit of all": partial(processed, text={"max_length": 30}, common={"max_length": 5}),
    "no special tokens": partial(processed, text={"add_special_tokens": False}),
    "cased by settings": cased_by_settings,
    "settings of no class": partial(cased_by_settings, tokenizer_class="PreTrainedTokenizerFast"),
    "prefix by settings": prefix_by_settings,
}
