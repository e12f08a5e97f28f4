from __future__ import annotations

import weakref
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sbert_search.errors import ModelError
from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.packed import PackedTokens
from tests.models.encoder.small import DISENTANGLED, ROTATED, small_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = st.lists(
    st.lists(st.integers(1, 49), min_size=1, max_size=12).map(tuple), min_size=1, max_size=9
)


def encode(encoder: Encoder, texts: list[tuple[int, ...]], **options: Any) -> list[Tensor]:
    tokens = PackedTokens.from_lists(texts)
    with torch.inference_mode():
        states = encoder(tokens, **options).hidden_states.float()
    return list(states.split(list(tokens.lengths)))


def vectors(encoder: Encoder, texts: list[tuple[int, ...]]) -> list[Tensor]:
    return [F.normalize(states.mean(0), dim=0) for states in encode(encoder, texts)]


@pytest.mark.parametrize("shape", [{}, DISENTANGLED], ids=["plain", "disentangled"])
@settings(max_examples=25, deadline=None)
@given(texts=TEXTS)
def test_company_and_order_change_nothing(
    shape: dict[str, Any], texts: list[tuple[int, ...]]
) -> None:
    encoder = small_encoder(**shape)
    alone = [vectors(encoder, [text])[0] for text in texts]
    together = vectors(encoder, texts)
    backwards = vectors(encoder, texts[::-1])[::-1]
    for one, two, three in zip(alone, together, backwards, strict=True):
        assert float((one - two).abs().max()) <= 1e-6
        assert float((two - three).abs().max()) <= 1e-6


@settings(max_examples=15, deadline=None)
@given(texts=TEXTS)
def test_bfloat16_states_keep_their_direction_in_company(texts: list[tuple[int, ...]]) -> None:
    encoder = small_encoder().bfloat16()
    for text, together in zip(texts, vectors(encoder, texts), strict=True):
        assert float(together @ vectors(encoder, [text])[0]) >= 0.9999


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [{}, DISENTANGLED], ids=["plain", "disentangled"])
def test_half_precision_is_near_float32(dtype: torch.dtype, shape: dict[str, Any]) -> None:
    texts = [tuple(range(1, 1 + length)) for length in (3, 7, 3, 12)]
    exact = torch.cat(encode(small_encoder(**shape), texts))
    for want in (False, True):
        half = torch.cat(encode(small_encoder(**shape).to(dtype), texts, output_attentions=want))
        assert float(torch.cosine_similarity(exact, half).min()) >= 0.999


@pytest.mark.parametrize("shape", [{}, DISENTANGLED], ids=["plain", "disentangled"])
@pytest.mark.parametrize("output_attentions", [False, True])
def test_a_token_sees_both_sides_unless_causal(
    shape: dict[str, Any], output_attentions: bool
) -> None:
    left, right, short = (1, 2, 3, 4, 5), (1, 2, 3, 4, 9), (7, 8)
    for causal in (False, True):
        encoder = small_encoder(causal=causal, **shape)
        options = {"output_attentions": output_attentions}
        one = encode(encoder, [left, short], **options)[0]
        two = encode(encoder, [right, short], **options)[0]
        changed = float((one[:4] - two[:4]).abs().max())
        assert (changed == 0.0) if causal else (changed > 1e-3)


def test_segments_and_positions_matter() -> None:
    encoder = small_encoder().requires_grad_(False)
    texts = [[1, 2, 3]]
    plain = encoder(PackedTokens.from_lists(texts)).hidden_states
    zeros = encoder(PackedTokens.from_lists(texts, [[0, 0, 0]])).hidden_states
    pair = encoder(PackedTokens.from_lists(texts, [[0, 0, 1]])).hidden_states
    turned = encoder(PackedTokens.from_lists([[3, 2, 1]])).hidden_states.flip(0)
    assert torch.equal(plain, zeros)
    assert float((plain - pair).abs().max()) > 1e-3
    assert float((plain - turned).abs().max()) > 1e-3


@pytest.mark.parametrize("output_attentions", [False, True])
def test_dropout_is_off_in_evaluation_and_unbiased_in_training(output_attentions: bool) -> None:
    """Over many draws, the mean of attention with dropout equals attention without it."""
    encoder = small_encoder(layers=1, attention_dropout=0.5, hidden_dropout=0.0)
    tokens = PackedTokens.from_lists([[1, 2, 3, 4]] * 2000)
    attention = cast(Block, encoder.blocks[0]).attention
    states = encoder.embeddings(tokens)
    with torch.no_grad():
        still = attention(states, tokens, output_probs=output_attentions)[0].view(2000, 4, -1)
        noisy = attention.train()(states, tokens, output_probs=output_attentions)[0].view(
            2000, 4, -1
        )
    assert float(still.std(dim=0).max()) < 1e-5
    assert float(noisy.std(dim=0).max()) > 0.1
    error = (noisy.mean(dim=0) - still[0]).abs() / noisy.std(dim=0)
    assert float(error.max()) < 5 / 2000**0.5


def test_attention_probabilities_are_those_of_each_text() -> None:
    encoder = small_encoder()
    tokens = PackedTokens.from_lists([[1, 2, 3], [4], [5, 6, 7]])
    output = encoder(tokens, output_layers=True, output_attentions=True)
    assert [len(layer) for layer in output.attentions] == [3, 3]
    assert [p.shape for p in output.attentions[1]] == [(2, 3, 3), (2, 1, 1), (2, 3, 3)]
    for probabilities in output.attentions[1]:
        assert torch.allclose(probabilities.sum(-1), torch.ones(()), atol=1e-6)
    assert len(output.layer_states) == 3
    assert torch.equal(output.layer_states[-1], output.hidden_states)


def test_relative_positions_alone_limit_no_text() -> None:
    encoder = small_encoder(max_positions=8, **DISENTANGLED)
    ids = [number % 50 for number in range(30)]
    with torch.inference_mode():
        assert encoder(PackedTokens.from_lists([ids])).hidden_states.shape == (30, 24)


@pytest.mark.parametrize("shape", [{}, ROTATED])
def test_states_that_are_no_longer_needed_are_freed_before_the_next_layer(
    shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = small_encoder(**shape)
    block = cast(Block, encoder.blocks[0])
    born, freed = list[Any](), list[bool]()

    def remember(module: object, inputs: object, output: Any) -> None:
        born.append(weakref.ref(output[0] if isinstance(output, tuple) else output))

    def look(module: object, inputs: object) -> None:
        freed.append(born.pop()() is None)

    project = block.attention.project

    def projected(*arguments: Any) -> Any:
        heads = project(*arguments)
        born.append(weakref.ref(heads.value))
        return heads

    monkeypatch.setattr(block.attention, "project", projected)
    block.attention.output.register_forward_pre_hook(look)
    if not encoder.config.pre_norm:  # otherwise the sum is in the memory of attention's output
        block.attention.register_forward_hook(remember)
        block.up.register_forward_pre_hook(look)
    with torch.inference_mode():
        encoder(PackedTokens.from_lists([[1, 2, 3], [4, 5]]))
    assert freed == [True] * (1 if encoder.config.pre_norm else 2)


def test_too_long_a_text_is_refused() -> None:
    tokens = PackedTokens.from_lists([[1], [2] * 100_000])
    with pytest.raises(ValueError, match=r"Text 1 of the batch has 100,000 tokens; .* takes 12\."):
        small_encoder()(tokens)


@pytest.mark.parametrize(("token", "shown"), [(50, "50"), (-1, "-1")])
def test_ids_outside_the_vocabulary_are_refused(token: int, shown: str) -> None:
    with pytest.raises(ModelError, match=f"A token id is {shown}; .* has ids 0 to 49"):
        small_encoder()(PackedTokens.from_lists([[1, token]]))


def test_pooling_without_a_pooler_is_refused() -> None:
    tokens = PackedTokens.from_lists([[1, 2]])
    encoder = small_encoder()
    with pytest.raises(ModelError, match="has no pooler"):
        encoder.pool_first(encoder.first_states(tokens))


def test_fresh_weights_are_drawn_as_in_bert() -> None:
    encoder = small_encoder(initializer_range=0.02, hidden_size=64, vocab_size=5000)
    word = encoder.embeddings.word.weight
    assert float(word.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not word[0].any()  # padding
    block = cast(Block, encoder.blocks[1])
    assert float(block.up.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert not block.up.bias.any()
    assert torch.equal(block.output_norm.weight, torch.ones(64))


@pytest.mark.parametrize(
    "shape", [{}, DISENTANGLED, {"position_buckets": 8}], ids=["plain", "disentangled", "biases"]
)
def test_queries_from_elsewhere_ask_the_same_keys_and_values(shape: dict[str, Any]) -> None:
    """As in DeBERTa's mask decoder, only queries and residual come from other states."""
    encoder = small_encoder(**shape).requires_grad_(False)
    block, tokens = cast(Block, encoder.blocks[0]), PackedTokens.from_lists([[1, 2, 3], [4, 5, 6]])
    states = encoder.embeddings(tokens)
    relative = encoder.relative_positions(tokens)
    plain = block(states, tokens, relative=relative)[0]
    same = block(states, tokens, queries=states, relative=relative)[0]
    assert torch.allclose(plain, same, atol=1e-6)
    queries = states.clone()
    queries[1] += 1.0
    other = block(states, tokens, queries=queries, relative=relative)[0]
    changed = (other - plain).abs().amax(dim=1) > 1e-5
    assert changed.tolist() == [False, True, False, False, False, False]
