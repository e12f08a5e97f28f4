from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from sbert_search.errors import ConfigError, EvaluationError
from sbert_search.evaluate.perplexity import evaluate_masked
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.text.documents import CorpusReader
from tests.models.tiny import TOKENS, tiny_encoder, tiny_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> MaskedLanguageModel:
    encoder = tiny_encoder(initializer_range=0.3)
    return MaskedLanguageModel(encoder, tiny_tokenizer(tmp_path / "t")).eval()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat sat on the mat\na dog ran far away and then it slept\n" * 3)
    return path


def test_entropy_loss_and_accuracy(model: MaskedLanguageModel, text: Path) -> None:
    figures = evaluate_masked(model, CorpusReader(text), max_len=24)
    counts = [6, *[3] * 13]  # "the" twice in each of three lines
    assert figures.unigram_entropy == pytest.approx(
        -sum(n / 45 * math.log(n / 45) for n in counts), abs=1e-9
    )
    assert figures.perplexity == pytest.approx(math.exp(figures.loss))
    assert figures.masked > 0
    assert figures.pseudo_perplexity is None
    assert figures == evaluate_masked(model, CorpusReader(text), max_len=24)
    with torch.no_grad():
        model.token_head.bias.fill_(0).index_fill_(0, torch.tensor([TOKENS.index("the")]), 50.0)
    sure = evaluate_masked(model, CorpusReader(text), max_len=24, rate=0.9)
    assert sure.accuracy == pytest.approx(6 / 45, abs=0.05)


def test_logits_that_are_nan_are_refused(model: MaskedLanguageModel, text: Path) -> None:
    with torch.no_grad():
        model.token_head.bias.fill_(math.nan)
    with pytest.raises(EvaluationError, match="computes logits that are not finite"):
        evaluate_masked(model, CorpusReader(text), max_len=24)


def test_pseudo_perplexity_masks_each_token_once(model: MaskedLanguageModel, text: Path) -> None:
    text.write_text("the cat sat on the mat\n")
    figures = evaluate_masked(model, CorpusReader(text), max_len=24, rate=0.5, pseudo=1)
    ids = model.tokenizer.encode(["the cat sat on the mat"])[0][0]
    losses = []
    for place in range(1, len(ids) - 1):
        hidden = [*ids[:place], TOKENS.index("[MASK]"), *ids[place + 1 :]]
        with torch.no_grad():
            guesses = model(PackedTokens.from_lists([hidden]), torch.tensor([place]))
        losses.append(-guesses.token_logits.log_softmax(-1)[0, ids[place]].item())
    assert figures.pseudo_tokens == 6
    assert figures.pseudo_perplexity == pytest.approx(math.exp(sum(losses) / 6), rel=1e-5)


@pytest.mark.parametrize("short", ["the cat\n", "the\n"])
def test_a_text_without_a_masked_token_is_refused(
    model: MaskedLanguageModel, tmp_path: Path, short: str
) -> None:
    path = tmp_path / "short.txt"
    path.write_text(short)
    with pytest.raises(EvaluationError, match=r"was masked at a rate of 0\.15"):
        evaluate_masked(model, CorpusReader(path), max_len=24)


@pytest.mark.parametrize(("most", "pseudo"), [(0, 0), (1, -1)])
def test_numbers_of_examples_that_make_no_sense_are_refused(
    model: MaskedLanguageModel, text: Path, most: int, pseudo: int
) -> None:
    with pytest.raises(ConfigError, match=f"most is {most} and pseudo is {pseudo}"):
        evaluate_masked(model, CorpusReader(text), most=most, pseudo=pseudo)
