"""Open the models of an analysis, and choose its texts at random from a corpus of any size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from sbert_search.errors import EvaluationError, ModelError
from sbert_search.models.loading.folder import ModelFolder, read_folder
from sbert_search.models.loading.native_support import why_not_native
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.tokenizer import TextTokenizer


def open_folder(model: str | Path | None) -> tuple[ModelFolder, str]:
    """Find a bi-encoder or an encoder; return its folder, and the name by which it was found.

    This package's own encoder must support the architecture: an analysis needs the states of each
    layer.
    """
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    if reason := why_not_native(folder):
        raise ModelError(
            f"{folder.path}: {reason}. An analysis needs the states of each layer; name a model of "
            "the architecture BERT, RoBERTa, ALBERT, DistilBERT, ELECTRA or DeBERTa."
        )
    return folder, resolved.name


def texts_of(reader: CorpusReader) -> Iterator[str]:
    """Yield title and text of each document."""
    for batch in reader.batches():
        yield from (document.full_text for document in batch.documents)


def sample_texts(texts: Iterable[str], most: int, *, seed: int, fewest: int = 2) -> list[str]:
    """Choose up to ``most`` different texts at random; at least ``fewest``, or an error.

    Blank texts are left out. Equal texts are removed after the choice, so fewer than ``most`` may
    be returned. The same texts and seed give the same choice and order. Memory holds at most
    ``most`` texts at a time.

    Source: Vitter 1985, Random Sampling with a Reservoir, algorithm R.
    """
    draw = random.Random(seed)
    chosen: list[str] = []
    filled = (text for text in texts if text.strip())
    for number, text in enumerate(filled):
        place = draw.randrange(number + 1)
        if len(chosen) < most:
            chosen.append(text)
        elif place < most:
            chosen[place] = text
    chosen = list(dict.fromkeys(chosen))
    if len(chosen) < fewest:
        raise EvaluationError(
            f"The analysis needs at least {fewest} different texts, and its sample has "
            f"{len(chosen)}; name a longer SOURCE, such as a text file of one sentence a line."
        )
    draw.shuffle(chosen)
    return chosen


def framing_ids(tokenizer: TextTokenizer) -> set[int]:
    """Ids of the special tokens around texts, such as those of [CLS] and [SEP]."""
    single, pair = tokenizer.single, tokenizer.pair
    return {*single.before, *single.after, *pair.before, *pair.between, *pair.after}


def special_ids(tokenizer: TextTokenizer) -> set[int]:
    """Ids of all special tokens of a tokenizer: those around texts, [UNK], [MASK] and others."""
    added = tokenizer.backend.get_added_tokens_decoder()
    return framing_ids(tokenizer) | {token_id for token_id, token in added.items() if token.special}
