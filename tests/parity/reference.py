"""What every family has to agree on with its reference implementation in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.packed import PackedTokens
from sbert_search.encoder.weights import load_encoder, save_encoder

TOLERANCE = 1e-5


def random_model(model: Any, seed: int = 0) -> Any:
    """Fill every parameter, biases and norms too, so that none can be mapped wrongly unseen."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm else 0.08 * noise)
    return model.eval()


def random_batch(
    lengths: tuple[int, ...], *, vocab: int, segments: int = 0, first_id: int = 5, seed: int = 0
) -> PackedTokens:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(first_id, vocab, (total,), generator=generator)
    types = torch.randint(0, segments, (total,), generator=generator) if segments else None
    return PackedTokens(ids, lengths, types)


def run_reference(model: PreTrainedModel, tokens: PackedTokens, **options: Any) -> Any:
    """Give the reference the same batch, padded on the right."""
    pad_id = model.config.pad_token_id
    inputs: dict[str, Any] = {
        "input_ids": tokens.pad(tokens.input_ids, pad_id),
        "attention_mask": mask_of(tokens),
    }
    if tokens.token_type_ids is not None:
        inputs["token_type_ids"] = tokens.pad(tokens.token_type_ids)
    return model(**inputs, **options)


def mask_of(tokens: PackedTokens) -> Tensor:
    return tokens.pad(torch.ones(tokens.total, dtype=torch.int64))


def our_copy(model: PreTrainedModel, folder: Path) -> Encoder:
    model.save_pretrained(folder)
    return load_encoder(folder)


def assert_same_states(model: PreTrainedModel, encoder: Encoder, tokens: PackedTokens) -> None:
    """Every layer's states and every attention probability agree, packed against padded."""
    real = mask_of(tokens).bool()
    with torch.no_grad():
        theirs = run_reference(model, tokens, output_hidden_states=True, output_attentions=True)
        fast = encoder(tokens)
        ours = encoder(tokens, want_layers=True, want_attentions=True)
    assert_close(fast.hidden_states, theirs.last_hidden_state[real])
    assert_close(ours.hidden_states, theirs.last_hidden_state[real])
    assert len(ours.layer_states) == len(theirs.hidden_states)
    for mine, their in zip(ours.layer_states, theirs.hidden_states, strict=True):
        assert_close(mine, their[real])
    assert len(ours.attentions) == len(theirs.attentions)
    for mine, their in zip(ours.attentions, theirs.attentions, strict=True):
        for text, length in enumerate(tokens.lengths):
            assert_close(mine[text], their[text, :, :length, :length])


def assert_same_gradients(
    model: PreTrainedModel, encoder: Encoder, tokens: PackedTokens, folder: Path
) -> None:
    """A loss over the packed states has the gradients of the same loss over padded ones."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(tokens.total, encoder.config.hidden_size, generator=generator)
    theirs = run_reference(model, tokens).last_hidden_state[mask_of(tokens).bool()]
    for states in (encoder(tokens).hidden_states, theirs):
        torch.autograd.backward(states.sub(target).square().mean())
    with torch.no_grad():  # gradients travel through our own writer to get their names
        for parameter in encoder.parameters():
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
        for parameter in model.parameters():
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    save_encoder(encoder, folder)
    assert_same_parameters(AutoModel.from_pretrained(folder), model)


def assert_round_trip(model: PreTrainedModel, encoder: Encoder, folder: Path) -> None:
    """What we save, transformers loads with every parameter equal, and so do we."""
    save_encoder(encoder, folder)
    assert_same_parameters(AutoModel.from_pretrained(folder), model, exactly=True)
    again = load_encoder(folder)
    assert again.config == encoder.config
    assert_same_parameters(again, encoder, exactly=True)


def assert_same_parameters(ours: nn.Module, theirs: nn.Module, *, exactly: bool = False) -> None:
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == other.keys()
    for name, parameter in mine.items():
        if exactly:
            assert torch.equal(parameter, other[name]), name
        else:
            assert_close(parameter, other[name], name)


def assert_close(ours: Tensor, theirs: Tensor, what: str = "values") -> None:
    worst = float((ours.detach() - theirs.detach()).abs().max())
    assert worst <= TOLERANCE, f"{what} differ by {worst:.2e}"
