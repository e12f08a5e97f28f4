"""Send texts through a bi-encoder once: figures of every layer, and the sentence vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sbert_search.base.progress import progress
from sbert_search.embed.protocol import Vectors
from sbert_search.errors import EvaluationError
from sbert_search.lab.anisotropy.layer_sums import BatchTokens, LayerFigures, LayerSums, Occurrences
from sbert_search.lab.sampling import special_ids
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.inference_layers import freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import pool
from sbert_search.text.tokens.batching import token_batches

FEWEST_TEXTS = 5  # words that occur in fewer texts are not sampled
_WORDS = 200  # largest number of sampled words
_SINGLE = 1000  # number of texts of which one random token is kept
_BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class LayerPass:
    """The result of one pass of texts through a model.

    Attributes:
        layers: Figures of the embeddings and of each layer.
        vectors: Sentence vectors of the texts that have tokens to analyse, float32 (n, dim).
    """

    layers: tuple[LayerFigures, ...]
    vectors: Vectors


class _Words:
    """Finds the tokens to analyse: all tokens of a text except special tokens and the prompt."""

    def __init__(
        self,
        model: BiEncoder,
        ids: Sequence[Sequence[int]],
        texts: Sequence[str],
        prompt: str,
        seed: int,
    ) -> None:
        special = special_ids(model.tokenizer)
        self.of_text = [
            [place for place in range(first, len(text)) if text[place] not in special]
            for first, text in zip(_first_places(model, texts, prompt), ids, strict=True)
        ]
        self._ids = ids
        texts_with = Counter(
            token
            for text, places in zip(ids, self.of_text, strict=True)
            for token in {text[place] for place in places}
        )
        common = sorted(token for token, n in texts_with.items() if n >= FEWEST_TEXTS)
        draw = np.random.default_rng(seed)
        chosen = draw.permutation(common)[:_WORDS].tolist() if common else []
        self.counts = [texts_with[token] for token in chosen]
        self._word_of = {token: word for word, token in enumerate(chosen)}
        self._seen = [0] * len(chosen)
        self._draw = draw

    def of_batch(self, texts: NDArray[np.int64], device: torch.device) -> BatchTokens:
        """Find the tokens to analyse in a batch; ``texts`` has the text numbers in batch order."""
        rows: list[int] = []
        occurrences: list[tuple[int, int, int]] = []
        single: list[int] = []
        firsts: list[int] = []
        start = 0  # row of the first token of the text in the batch
        for text in texts.tolist():
            places, ids, first = self.of_text[text], self._ids[text], len(rows)
            firsts.append(first)
            rows += [start + place for place in places]
            if text < _SINGLE:
                single.append(first + int(self._draw.integers(len(places))))
            found: dict[int, int] = {}
            for offset, place in enumerate(places):
                if (word := self._word_of.get(ids[place])) is not None:
                    found.setdefault(word, first + offset)
            for word, row in found.items():
                occurrences.append((row, word, self._seen[word]))
                self._seen[word] += 1
            start += len(ids)
        columns = np.array(occurrences, dtype=np.int64).reshape(-1, 3).T
        return BatchTokens(
            torch.tensor(rows, device=device),
            torch.tensor(firsts, device=device),
            Occurrences(*torch.from_numpy(columns.copy()).to(device)),
            torch.tensor(single, dtype=torch.int64, device=device),
        )


def _first_places(model: BiEncoder, texts: Sequence[str], prompt: str) -> list[int]:
    """Return the place of the first token of each text, after special tokens and the prompt.

    The place differs between texts: a byte-level tokenizer may join the space at the end of the
    prompt with the first word of the text.
    """
    before = len(model.tokenizer.single.before)
    if not prompt:
        return [before] * len(texts)
    prompted = model.tokenizer.encode_offsets([prompt + text for text in texts])
    return [before + sum(stop <= len(prompt) for _, stop in places) for _, places in prompted]


@torch.inference_mode()
def pass_texts(model: BiEncoder, texts: Sequence[str], *, seed: int = 0) -> LayerPass:
    """Compute the figures of every layer and the sentence vectors of some texts.

    The states of a batch are discarded after they are added to the sums of each layer.

    Args:
        model: A bi-encoder in float32 on its device. Its linear layers may be replaced by faster
            layers; the model can then no longer be trained or saved.
        texts: At least two texts, in random order. The model's default prompt is put before each
            text.
        seed: Seed of the choice of words and tokens.

    Raises:
        EvaluationError: Fewer than two texts have tokens besides the special ones.
    """
    prompt = model.prompts.get(model.default_prompt_name or "", "")
    ids, _ = model.tokenizer.encode([prompt + text for text in texts])
    words = _Words(model, ids, texts, prompt, seed)
    filled = np.array([text for text, places in enumerate(words.of_text) if places], dtype=np.int64)
    if len(filled) < 2:
        raise EvaluationError(
            f"{len(filled)} of {len(texts)} texts have tokens that the model knows; at least 2 are "
            "needed. Name another SOURCE."
        )
    if not model.encoder.frozen:
        freeze(model.encoder)
    device = next(model.parameters()).device
    on = torch.device("cpu") if device.type == "mps" else device  # mps has no float64
    config = model.encoder.config
    n_layers = len(config.block_order) + 1
    sums = [LayerSums(config.hidden_size, words.counts, on) for _ in range(n_layers)]
    vectors = np.zeros((len(texts), model.dim), dtype=np.float32)
    lengths = np.array([len(ids[text]) for text in filled])
    with progress("Analysing", len(filled), "texts") as advance:
        for batch in token_batches(lengths, _BATCH_TOKENS):
            rows = filled[batch]
            tokens = PackedTokens.from_lists([ids[text] for text in rows], device=device)
            output = model.encoder(tokens, output_layers=True)
            found = words.of_batch(rows, on)
            for layer, states in zip(sums, output.layer_states, strict=True):
                layer.add(states, found)
            pooled = pool(output.hidden_states, tokens, model.pooling)
            vectors[rows] = model.head(pooled).float().cpu().numpy()
            advance(len(rows))
    figures = tuple(each.figures(number, seed=seed) for number, each in enumerate(sums))
    return LayerPass(figures, vectors[filled])
