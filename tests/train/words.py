"""A vocabulary of words without meaning, and texts of them, for tests of pre-training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from sbert_search.text.tokens.vocabulary import SPECIAL_TOKENS

WORDS = [f"w{n}" for n in range(200)]


def write_vocabulary(folder: Path, *, leave_out: str | None = None) -> Path:
    """Write a vocabulary as `tokenizer train` does."""
    folder.mkdir(parents=True)
    pieces = [token for token in [*SPECIAL_TOKENS, *WORDS] if token != leave_out]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder


def write_texts(path: Path, documents: int, *, sentences: int = 1, words: int = 30) -> Path:
    """Write documents of sentences of words, each drawn for itself."""
    draw = np.random.default_rng(5)
    with path.open("w") as file:
        for _ in range(documents):
            lines = draw.choice(WORDS, (sentences, words))
            text = "\n".join(" ".join(line) for line in lines)
            file.write(json.dumps({"text": text}) + "\n")
    return path
