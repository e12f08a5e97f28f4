"""Pre-trained checkpoints: transformers loads ours, and both say the same of masked words."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.logit_losses import replaced_token_loss, token_cross_entropy
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.models.replaced_token_detection import GENERATOR, ReplacedTokenModel
from tests.models.tiny import FAMILIES, TOKENS, tiny_encoder, tiny_tokenizer

LENGTHS = (12, 7, 20)
PAIRED = ("bert", "albert")


def batch(*, segments: bool) -> MaskedBatch:
    """Three texts with holes; the second half of each is another segment."""
    draw = torch.Generator().manual_seed(0)
    total = sum(LENGTHS)
    ids = torch.randint(5, len(TOKENS), (total,), generator=draw)
    types = torch.cat([torch.arange(n) >= n // 2 for n in LENGTHS]).long()
    positions = torch.tensor([1, 5, 14, 20, 33])
    labels = ids[positions].clone()
    ids[positions] = 4
    tokens = PackedTokens(ids, LENGTHS, types if segments else None)
    return MaskedBatch(tokens, positions, labels, torch.tensor([0, 1, 1]))


def padded(tokens: PackedTokens) -> dict[str, Tensor]:
    fields = {
        "input_ids": tokens.pad(tokens.input_ids),
        "attention_mask": tokens.pad(torch.ones(tokens.total, dtype=torch.long)),
    }
    if tokens.token_type_ids is not None:
        fields["token_type_ids"] = tokens.pad(tokens.token_type_ids)
    return fields


def padded_labels(given: MaskedBatch) -> Tensor:
    labels = torch.full_like(given.tokens.input_ids, -100)
    labels[given.positions] = given.labels
    return given.tokens.pad(labels, -100)


def peer(name: str, path: Path) -> Any:
    """Load by the class that the folder names, refusing weights that are left over or missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model, info = getattr(transformers, name).from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not [key for key in info["unexpected_keys"] if "position_embeddings" not in key]
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_masked_words_and_pairs_as_in_transformers(family: str, tmp_path: Path) -> None:
    encoder = tiny_encoder(**FAMILIES[family], initializer_range=0.2)
    pairs = family in PAIRED
    model = MaskedLanguageModel(encoder, tiny_tokenizer(tmp_path / "t"), pairs=pairs).eval()
    for part in (model.token_head.bias, model.token_head.norm.bias):
        if part is not None:
            part.normal_(generator=torch.Generator().manual_seed(1))
    model.save(tmp_path / "m")
    given = batch(segments=encoder.config.token_type_vocab > 1)
    ours = model(given.tokens, given.positions)
    layout = model.layout
    theirs = peer(str(layout.paired if pairs else layout.masked), tmp_path / "m")
    inputs = padded(given.tokens)
    out = theirs(**inputs, labels=padded_labels(given))
    logits = out.prediction_logits if pairs else out.logits
    kept = logits[inputs["attention_mask"].bool()][given.positions]
    assert torch.allclose(ours.token_logits, kept, atol=1e-5)
    total, count = token_cross_entropy(ours.token_logits, given.labels)
    if not pairs:
        assert (total / count).item() == pytest.approx(out.loss.item(), abs=1e-5)
    else:
        name = "next_sentence_label" if family == "bert" else "sentence_order_label"
        both = theirs(**inputs, labels=padded_labels(given), **{name: given.pair_labels}).loss
        pair_total, texts = token_cross_entropy(ours.pair_logits, given.pair_labels)
        assert (total / count + pair_total / texts).item() == pytest.approx(both.item(), abs=1e-5)
    again = MaskedLanguageModel.load(tmp_path / "m")
    assert torch.equal(again(given.tokens, given.positions).token_logits, ours.token_logits)


@torch.no_grad()
def test_replaced_tokens_as_in_transformers(tmp_path: Path) -> None:
    encoder = tiny_encoder(**FAMILIES["electra"], initializer_range=0.2)
    generator = tiny_encoder(**FAMILIES["electra"], layers=1).config
    model = ReplacedTokenModel(encoder, generator, tiny_tokenizer(tmp_path / "t")).eval()
    model.save(tmp_path / "m")
    given = batch(segments=True)
    torch.manual_seed(5)
    found = model(given)
    ids = given.tokens.input_ids.clone()
    torch.manual_seed(5)
    noise = -torch.empty_like(found.generator_logits).exponential_().log()
    ids[given.positions] = (found.generator_logits + noise).argmax(-1)
    original = given.tokens.input_ids.clone()
    original[given.positions] = given.labels
    assert torch.equal(found.replaced, ids != original)
    assert found.replaced.any()
    inputs = padded(PackedTokens(ids, LENGTHS, given.tokens.token_type_ids))
    labels = given.tokens.pad((ids != original).long())
    theirs = peer("ElectraForPreTraining", tmp_path / "m")(**inputs, labels=labels)
    kept = theirs.logits[inputs["attention_mask"].bool()]
    assert torch.allclose(found.logits, kept, atol=1e-5)
    total, count = replaced_token_loss(found.logits, found.replaced)
    assert (total / count).item() == pytest.approx(theirs.loss.item(), abs=1e-5)
    words = peer("ElectraForMaskedLM", tmp_path / "m" / GENERATOR)(**padded(given.tokens)).logits
    kept = words[inputs["attention_mask"].bool()][given.positions]
    assert torch.allclose(found.generator_logits, kept, atol=1e-5)


@torch.no_grad()
def test_the_mask_decoder_is_the_last_block_asked_twice_with_positions(tmp_path: Path) -> None:
    encoder = tiny_encoder(**FAMILIES["deberta"], initializer_range=0.2)
    model = MaskedLanguageModel(encoder, tiny_tokenizer(tmp_path / "t"), mask_decoder=True).eval()
    given = batch(segments=False)
    assert model.mask_decoder is not None
    expected = []
    for text in torch.split(given.tokens.input_ids, list(LENGTHS)):  # one by one, a plain reference
        alone = PackedTokens(text, (len(text),))
        before = encoder(alone, output_layers=True).layer_states[-2]
        queries = before + model.mask_decoder.position.weight[: len(text)]
        for _ in range(2):
            queries, _ = encoder.blocks[-1](
                before, alone, queries=queries, relative=encoder.relative_positions(alone)
            )
        expected.append(queries)
    states = torch.cat(expected)[given.positions]
    wanted = model.token_head(states, encoder.embeddings.word.weight)
    assert torch.allclose(model(given.tokens, given.positions).token_logits, wanted, atol=1e-5)
    model.save(tmp_path / "m")
    again = MaskedLanguageModel.load(tmp_path / "m")
    assert again.mask_decoder is not None
    assert torch.allclose(again(given.tokens, given.positions).token_logits, wanted, atol=1e-5)


def test_fresh_heads_have_the_spread_of_the_encoder(tmp_path: Path) -> None:
    encoder = Encoder(tiny_encoder(initializer_range=0.5, pooler=True).config)
    model = MaskedLanguageModel(encoder, tiny_tokenizer(tmp_path), pairs=True)
    assert model.token_head.dense.weight.std().item() == pytest.approx(0.5, rel=0.2)
    assert not model.token_head.bias.any()
