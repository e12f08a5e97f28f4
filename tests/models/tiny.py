"""Small models with random weights, for tests of folders and shapes."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.sequence_classifier import CrossEncoder, SequenceClassifier
from sbert_search.models.side_file import SideFile
from sbert_search.models.token_classifier import QuestionAnswerer, TokenClassifier
from sbert_search.text.labelled.records import LabelKind
from sbert_search.text.tokens.tokenizer import TextTokenizer

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "ran",
    "far",
    "away",
    "and",
    "then",
    "it",
    "slept",
    "in",
    "red",
    "sun",
]
TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *WORDS,
    *string.ascii_lowercase[1:],
    *(f"##{letter}" for letter in string.ascii_lowercase),
    *".,!?'",
]
TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")
TEXTS = [
    "The cat sat on the mat.",
    "A dog ran far away, and then it slept in the sun!",
    "cat",
    "",
    "unknown words become pieces; é too",
    "the red sun " * 20,
]
PAIRS = [
    ("cat", "the cat sat on the mat"),
    ("the dog " * 20, "far away"),
    ("it slept", "the red sun " * 20),
    ("a " * 30, "b " * 30),
    ("", ""),
    ("dog", ""),
]
# Settings of `tiny_encoder` for each published layout.
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {"pooler": True},
    "roberta": {"layout": "roberta", "position_offset": 1, "token_type_vocab": 1},
    "xlm-roberta": {"layout": "xlm-roberta", "position_offset": 1, "token_type_vocab": 1},
    "mpnet": {
        "layout": "mpnet",
        "pad_id": 1,
        "position_offset": 2,
        "token_type_vocab": 0,
        "position_buckets": 32,
    },
    "modernbert": {
        "layout": "modernbert",
        "gated": True,
        "pre_norm": True,
        "has_biases": False,
        "position_embeddings": False,
        "token_type_vocab": 0,
        "rotary_base": 160_000.0,
        "global_every": 3,
        "local_reach": 3,
        "local_rotary_base": 10_000.0,
    },
    "albert": {
        "layout": "albert",
        "embedding_size": 8,
        "layer_groups": 1,
        "activation": "gelu_tanh",
        "pooler": True,
    },
    "distilbert": {"layout": "distilbert", "token_type_vocab": 0},
    "electra": {"layout": "electra", "embedding_size": 8},
    "deberta": {
        "layout": "deberta",
        "position_embeddings": False,
        "token_type_vocab": 0,
        "attention_terms": ("c2c", "c2p", "p2c"),
        "relative_positions": 32,
        "key_bias": False,
    },
}


def tiny_tokenizer(folder: Path, max_len: int = 24) -> TextTokenizer:
    """Write a vocabulary and read it as a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    settings = {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return TextTokenizer.from_folder(folder, max_len)


def tiny_encoder(**changes: Any) -> Encoder:
    """Make a two-layer BERT with random weights."""
    torch.manual_seed(3)
    shape = {"vocab_size": len(TOKENS), "hidden_size": 16, "layers": 2, "heads": 2}
    config = EncoderConfig(**{**shape, "intermediate_size": 24, "max_positions": 32, **changes})
    return Encoder(config).eval()


def tiny_bi_encoder(folder: Path, **settings: Any) -> BiEncoder:
    """Make a bi-encoder whose tokenizer lies in a folder."""
    return BiEncoder(tiny_encoder(), tiny_tokenizer(folder), **settings).eval()


def tiny_cross_encoder(folder: Path, **settings: Any) -> CrossEncoder:
    """Make a cross-encoder whose tokenizer lies in a folder."""
    encoder = tiny_encoder(pooler=True, initializer_range=0.3)
    return CrossEncoder(encoder, tiny_tokenizer(folder), **settings).eval()


def tiny_classifier(
    folder: Path,
    labels: tuple[str, ...] = ("no", "maybe", "yes"),
    kind: LabelKind = "class",
    threshold: float = 0.5,
) -> SequenceClassifier:
    """Make a classifier of texts or pairs."""
    encoder, side = (
        tiny_encoder(pooler=True, initializer_range=0.3),
        SideFile(threshold=threshold),
    )
    return SequenceClassifier(
        encoder, tiny_tokenizer(folder), labels=labels, kind=kind, side=side
    ).eval()


def tiny_tagger(folder: Path, labels: tuple[str, ...] = TAGS) -> TokenClassifier:
    """Make a tagger of words."""
    encoder = tiny_encoder(initializer_range=0.5)
    return TokenClassifier(encoder, tiny_tokenizer(folder), labels=labels).eval()


def tiny_answerer(folder: Path, side: SideFile | None = None) -> QuestionAnswerer:
    """Make a model that answers questions."""
    encoder = tiny_encoder(initializer_range=0.5)
    return QuestionAnswerer(encoder, tiny_tokenizer(folder), side=side).eval()


def tiny_static(
    folder: Path, *, seed: int = 0, noise: float = 0.0, dim: int = 16, prompts: Any = None
) -> Path:
    """Write a StaticEmbedding, as sentence-transformers does, of random vectors and some noise."""
    folder.mkdir()
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(TOKENS)}, "[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    table = np.random.default_rng(seed).normal(0, 1, (len(TOKENS), dim))
    table += np.random.default_rng(seed + 1).normal(0, noise, table.shape)
    save_file({"embedding.weight": table.astype(np.float32)}, folder / "model.safetensors")
    kind = "sentence_transformers.models.StaticEmbedding"
    listing = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(listing))
    settings = {"prompts": prompts or {}, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder
