"""Figures of every attention head over a corpus, and heads that can be removed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from sbert_search.base.device import resolve_device
from sbert_search.base.progress import note, progress
from sbert_search.config import to_mapping
from sbert_search.errors import EvaluationError, ModelError
from sbert_search.lab.attention.maps import HeadFigures, Roles, head_figures, open_encoder, sum_text
from sbert_search.lab.attention.pruning import (
    MaskedTokens,
    Objective,
    PairSimilarity,
    Pruning,
    prune,
)
from sbert_search.lab.inputs import framing_ids, open_folder, sample_texts
from sbert_search.lab.templates import write_files
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.tokens.batching import token_batches
from sbert_search.text.tokens.tokenizer import TextTokenizer

_BATCH_TOKENS = 2048
_LONGEST = 128  # largest number of tokens of a text; attention memory grows with its square


@dataclass(frozen=True, kw_only=True)
class HeadReport:
    """The result of `analyze_heads`.

    Attributes:
        model: Name of the model.
        texts: Number of texts.
        tokens: Number of their tokens that are not special.
        heads: Figures of each head over these tokens.
        pruning: Importance of heads, and scores without the least important ones; None if the model
            has no usable head for masked-language modelling and no scored pairs were given.

    Example:
        >>> len(analyze_heads("my-model", ["the cat sat", "a dog ran"], device="cpu").heads)
        4
    """

    model: str
    texts: int
    tokens: int
    heads: tuple[HeadFigures, ...]
    pruning: Pruning | None

    def to_mapping(self) -> dict[str, object]:
        """Return all figures as JSON values."""
        pruning = self.pruning
        return {
            "model": self.model,
            "texts": self.texts,
            "tokens": self.tokens,
            "heads": [to_mapping(each) for each in self.heads],
            "pruning": None
            if pruning is None
            else {**to_mapping(pruning), "removable": pruning.removable},
        }

    def write(self, out: str | Path) -> list[Path]:
        """Write ``heads.json`` into a folder; return its path."""
        record = json.dumps(self.to_mapping(), indent=1) + "\n"
        return write_files(out, {"heads.json": record.encode()})


class HeadOptions(TypedDict, total=False):
    """Options of `analyze_heads`.

    Attributes:
        sts: File of scored pairs, on which the importance of heads is estimated and the model is
            measured without the least important heads. Default: no file; the loss of masked tokens
            of the texts is used instead.
        most_texts: Largest number of texts to analyse, chosen at random; default 1,000.
        device: Device of the model, as for `Embedder`. The model computes in fp32.
        seed: Seed of all random choices; default 0.
    """

    sts: str | Path | None
    most_texts: int
    device: str
    seed: int


def analyze_heads(
    model: str | Path | None, texts: Iterable[str], **options: Unpack[HeadOptions]
) -> HeadReport:
    """Compute figures of every attention head over texts, and find heads that can be removed.

    The output of each head is multiplied by a gate. The importance of a head is the absolute
    derivative of the loss with respect to this gate, averaged over examples. The importance is
    estimated on one half of the data. On the other half, the model is measured without the least
    important heads.

    Args:
        model: As for `analyze_attention`.
        texts: At least 2 different texts. The figures are computed from at most the first 128
            tokens of a text, special tokens included.
        options: Settings of the analysis; see `HeadOptions`.

    Raises:
        ConfigError: The device is not available.
        CorpusError: The pairs cannot be read.
        EvaluationError: There are too few texts or pairs, a pair has no score, or all scores are
            equal.
        ModelError: The model cannot be found or loaded, or has an unsupported architecture.

    Sources: Clark et al. 2019 (arXiv:1906.04341), Michel et al. 2019 (arXiv:1905.10650).

    Example:
        >>> analyze_heads("my-model", ["the cat sat", "a dog ran"], device="cpu").tokens
        6
    """
    seed, device = options.get("seed", 0), options.get("device", "auto")
    name, encoder, tokenizer = open_encoder(model, device)
    chosen = sample_texts(texts, options.get("most_texts", 1000), seed=seed)
    heads, tokens = head_figures_of_texts(encoder, tokenizer, chosen)
    del encoder
    objective = _objective(model, chosen, options.get("sts"), device=device, seed=seed)
    return HeadReport(
        model=name,
        texts=len(chosen),
        tokens=tokens,
        heads=heads,
        pruning=None if objective is None else prune(objective),
    )


@torch.inference_mode()
def head_figures_of_texts(
    encoder: Encoder, tokenizer: TextTokenizer, texts: Sequence[str]
) -> tuple[tuple[HeadFigures, ...], int]:
    """Figures of each head over the tokens of texts, and the number of these tokens."""
    config = encoder.config
    device, special = encoder.embeddings.word.weight.device, framing_ids(tokenizer)
    after = tokenizer.single.after
    ids = [
        each if len(each) <= _LONGEST else [*each[: _LONGEST - len(after)], *after]
        for each in tokenizer.encode(texts)[0]
    ]
    sums = torch.zeros(len(config.block_order), config.heads, 7, dtype=torch.float64)
    tokens = 0
    with progress("Attending", len(texts), "texts") as advance:
        for rows in token_batches([len(each) for each in ids], _BATCH_TOKENS):
            of_batch = [ids[row] for row in rows]
            packed = PackedTokens.from_lists(of_batch, device=device)
            roles = [Roles.of(each, tokenizer, special) for each in of_batch]
            output = encoder(packed, output_attentions=True)
            for layer, attentions in enumerate(output.attentions):
                for of_text, role in zip(attentions, roles, strict=True):
                    sums[layer] += sum_text(of_text.cpu(), role)
            tokens += sum(role.special.count(False) for role in roles)
            advance(len(rows))
    return head_figures(sums, tokens), tokens


def _objective(
    model: str | Path | None,
    texts: Sequence[str],
    sts: str | Path | None,
    *,
    device: str,
    seed: int,
) -> Objective | None:
    """Choose the task that judges heads; None: no scored pairs, and no usable head for MLM."""
    target = resolve_device(device)
    if sts is not None:
        pairs = read_pairs(Path(sts))
        gold = [pair.score for pair in pairs if pair.score is not None]
        if len(gold) < len(pairs):
            raise EvaluationError(f"{sts}: {len(pairs) - len(gold)} pairs have no score.")
        bi_encoder = BiEncoder.from_folder(open_folder(model)[0]).to(target)
        both = [(pair.text1, pair.text2) for pair in pairs]
        return PairSimilarity(bi_encoder, both, gold, seed=seed)
    try:
        masked = MaskedLanguageModel.load(resolve_model(model).path).to(target)
    except ModelError as error:
        note(f"No heads are removed: {error} Or give scored pairs with --sts.")
        return None
    return MaskedTokens(masked, texts, seed=seed)
