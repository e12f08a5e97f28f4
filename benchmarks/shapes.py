"""Make folders of models with published shapes and random weights, to measure speed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from sbert_search.models.loading.resolve import resolve_model

SHAPES: dict[str, tuple[str, dict[str, Any], int]] = {
    # the class in transformers, its configuration, and the number of tokens that the model reads
    "mpnet-base": ("MPNet", {"max_position_embeddings": 514}, 384),
    "xlm-r-12x384": (
        "XLMRoberta",
        {
            "hidden_size": 384,
            "intermediate_size": 1536,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
        128,
    ),
    "modernbert-base": ("ModernBert", {}, 8192),
}


def write_shape(name: str, folder: Path) -> Path:
    """Write a folder of sentence-transformers: random weights, and the words of all-MiniLM-L6-v2.

    The number of words in the table has no part in the speed.
    """
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    kind, settings, max_len = SHAPES[name]
    bare = folder / f"{name}-bare"
    bare.mkdir(parents=True)
    for part in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(resolve_model(None).path / part, bare)
    tokenizer = transformers.AutoTokenizer.from_pretrained(bare)
    ids = {f"{part}_token_id": getattr(tokenizer, f"{part}_token_id") for part in _SPECIAL}
    ids |= {"bos_token_id": ids["cls_token_id"], "eos_token_id": ids["sep_token_id"]}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer), **{**ids, **settings}
    )
    torch.manual_seed(0)
    getattr(transformers, f"{kind}Model")(config).save_pretrained(bare)
    modules = [
        Transformer(str(bare), max_seq_length=max_len),
        Pooling(config.hidden_size, pooling_mode="mean"),
    ]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / name))
    return folder / name


_SPECIAL = ("pad", "cls", "sep")
