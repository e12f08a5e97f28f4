"""ELECTRA over a million tokens, with a generator that draws from a known distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.pretraining import MaskedBatch, MaskedLMOutput
from sbert_search.models.replaced_token_detection import ReplacedTokenModel
from sbert_search.text.tokens.masking import MaskSettings, mask_tokens
from sbert_search.text.tokens.mlm_dataset import MaskedExamples
from sbert_search.text.tokens.specials import mask_vocabulary
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.loop.objective import Batch
from sbert_search.train.pretraining_objectives import ReplacedObjective
from tests.train.words import WORDS, write_vocabulary

PARTS, EXAMPLES, LENGTH = 8, 2_000, 66  # of 64 words between [CLS] and [SEP]
FIRST, CLS, SEP = 5, 2, 3  # ids of words begin behind the special tokens
LOG_ODDS = -2.0  # of a replaced token, said of every token
SHAPE: dict[str, Any] = {
    "layout": "electra",
    "hidden_size": 8,
    "heads": 1,
    "layers": 1,
    "intermediate_size": 8,
    "max_positions": LENGTH,
}


class KnownGenerator(nn.Module):
    """Predicts each word with a known probability at every position, and no special token."""

    def __init__(self, shares: Tensor) -> None:
        super().__init__()
        self.logits = torch.cat([torch.full((FIRST,), -torch.inf), shares.log()])

    def forward(self, _: Any, positions: Tensor) -> MaskedLMOutput:
        return MaskedLMOutput(self.logits.expand(len(positions), -1), None, None)


@dataclass(frozen=True)
class Seen:
    """All parts, concatenated: text, masked positions, input of the discriminator, and losses."""

    original: Tensor
    positions: Tensor
    shown: Tensor
    replaced: Tensor
    loss: float
    counted: int


@pytest.fixture(scope="module")
def shares() -> Tensor:
    """Probabilities of the words: a few are frequent, most are rare."""
    return (1 / torch.arange(1.0, len(WORDS) + 1)) / (1 / torch.arange(1.0, len(WORDS) + 1)).sum()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, shares: Tensor) -> Seen:
    folder = write_vocabulary(tmp_path_factory.mktemp("electra") / "v")
    tokenizer = TextTokenizer.from_folder(folder, LENGTH)
    config = EncoderConfig(vocab_size=tokenizer.vocab_size, **SHAPE)
    model = ReplacedTokenModel(Encoder(config), config, tokenizer).eval()
    model.register_module("generator", KnownGenerator(shares))
    shown: list[Tensor] = []
    found: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda _, given: shown.append(given[0].input_ids))
    model.register_forward_hook(lambda _, __, said: found.append(said.replaced))
    nn.init.zeros_(model.out.weight)
    nn.init.constant_(model.out.bias, LOG_ODDS)
    torch.manual_seed(0)
    with torch.no_grad():
        given = [masked(tokenizer, part) for part in range(PARTS)]
        losses = [ReplacedObjective()(model, Batch(each, np.arange(EXAMPLES))) for each in given]
    sums = [each.sums["rtd"] for each in losses]
    return Seen(
        torch.cat([whole(each) for each in given]),
        torch.cat([each.positions + n * EXAMPLES * LENGTH for n, each in enumerate(given)]),
        torch.cat(shown),
        torch.cat(found),
        sum(float(total) for total, _ in sums),
        sum(int(count) for _, count in sums),
    )


def masked(tokenizer: TextTokenizer, part: int) -> MaskedBatch:
    """Examples of equally frequent words, masked as in the recipe."""
    ids = np.random.default_rng(part).integers(FIRST, FIRST + len(WORDS), (EXAMPLES, LENGTH))
    ids[:, 0], ids[:, -1] = CLS, SEP
    lengths, rows = np.full(EXAMPLES, LENGTH), np.arange(EXAMPLES)
    settings = MaskSettings(mask_share=0.85, random_share=0.0)
    vocabulary = mask_vocabulary(tokenizer)
    holes = mask_tokens(ids.ravel(), lengths, rows, vocabulary, settings, seed=part, epoch=0)
    types = np.zeros(ids.size, np.int64)
    examples = MaskedExamples(holes.input_ids, types, lengths, holes.positions, holes.labels, rows)
    return MaskedBatch.of(examples, segments=True)


def whole(given: MaskedBatch) -> Tensor:
    """The text before it was masked."""
    return given.tokens.input_ids.index_put((given.positions,), given.labels)


@pytest.mark.thorough
def test_holes_are_filled_by_draws_and_nothing_else_is_touched(seen: Seen, shares: Tensor) -> None:
    assert len(seen.original) > 1_000_000
    is_hole = torch.zeros(len(seen.original), dtype=torch.bool)
    is_hole[seen.positions] = True
    assert torch.equal(seen.shown[~is_hole], seen.original[~is_hole])
    drawn = seen.shown[is_hole]
    assert drawn.min() >= FIRST  # neither [MASK] nor another special token is left
    counts = torch.bincount(drawn - FIRST, minlength=len(WORDS))
    assert (counts / len(drawn) - shares).abs().max() < 0.004


@pytest.mark.thorough
def test_a_draw_that_hits_the_original_counts_as_original(seen: Seen) -> None:
    assert torch.equal(seen.replaced, seen.shown != seen.original)
    hit = (~seen.replaced[seen.positions]).float().mean()
    assert hit == pytest.approx(1 / len(WORDS), abs=0.0008)  # words are equally frequent
    ordinary = seen.original >= FIRST
    share = seen.replaced.sum() / ordinary.sum()
    assert share == pytest.approx(0.15 * (1 - 1 / len(WORDS)), abs=0.001)


def test_every_token_has_its_part_in_the_loss(seen: Seen) -> None:
    n_replaced = int(seen.replaced.sum())
    of_replaced, of_others = softplus(torch.tensor([-LOG_ODDS, LOG_ODDS])).tolist()
    assert seen.counted == len(seen.original) == PARTS * EXAMPLES * LENGTH
    expected = n_replaced * of_replaced + (seen.counted - n_replaced) * of_others
    assert seen.loss == pytest.approx(expected, rel=1e-5)
