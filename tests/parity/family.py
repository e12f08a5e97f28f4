"""What every family of encoders has to agree on with its reference in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import load_encoder, save_encoder

TOLERANCE = 1e-5
VOCAB, POSITIONS = 97, 19
ODD = (7, 1, 19, 7, 3, 19)  # equal lengths apart, from one token to all positions
LENGTHS = [ODD, (1,), (19,), (4, 4, 4), tuple(range(1, 20))]


@pytest.mark.usefixtures("one_thread")
class SameAsReference:
    """Tests of one family; a subclass makes the reference model and names the shapes to try."""

    shapes: tuple[dict[str, Any], ...] = ({},)
    segments = 2

    def make(self, **changes: Any) -> Any:
        """Make a small reference model with odd sizes."""
        raise NotImplementedError

    def compare(
        self, folder: Path, lengths: tuple[int, ...], *, gradients: bool, **sizes: Any
    ) -> None:
        """Compare a model of other sizes with its copy on random texts."""
        model = random_parameters(self.make(**sizes))
        encoder, tokens = our_copy(model, folder / "theirs"), random_batch(lengths, self.segments)
        assert_same_states(model, encoder, tokens)
        if gradients:
            assert_same_gradients(model, encoder, tokens, folder / "gradients")

    @pytest.fixture
    def pair(self, tmp_path: Path) -> tuple[Any, Encoder]:
        model = random_parameters(self.make())
        return model, our_copy(model, tmp_path / "theirs")

    @pytest.mark.parametrize("lengths", LENGTHS)
    @pytest.mark.parametrize("with_segments", [False, True])
    def test_states_equal(
        self, pair: tuple[Any, Encoder], lengths: tuple[int, ...], with_segments: bool
    ) -> None:
        assert_same_states(*pair, random_batch(lengths, self.segments if with_segments else 0))

    def test_gradients_equal(self, pair: tuple[Any, Encoder], tmp_path: Path) -> None:
        assert_same_gradients(*pair, random_batch(ODD, self.segments), tmp_path / "gradients")

    def test_both_directions(self, pair: tuple[Any, Encoder], tmp_path: Path) -> None:
        assert_round_trip(*pair, tmp_path / "ours")

    def test_other_shapes_equal(self, tmp_path: Path) -> None:
        for number, changes in enumerate(self.shapes):
            model = random_parameters(self.make(**changes))
            encoder = our_copy(model, tmp_path / f"theirs{number}")
            assert_same_states(model, encoder, random_batch(ODD, self.segments))
            assert_round_trip(model, encoder, tmp_path / f"ours{number}")


def random_parameters(model: Any) -> Any:
    """Fill every parameter, biases and norms too, so that none can be mapped wrongly unseen."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.copy_(1.0 + 0.1 * noise if is_norm else 0.08 * noise)
    return model.eval()


def random_batch(lengths: tuple[int, ...], segments: int = 0) -> PackedTokens:
    generator = torch.Generator().manual_seed(0)
    total = sum(lengths)
    ids = torch.randint(6, VOCAB, (total,), generator=generator)
    types = torch.randint(0, segments, (total,), generator=generator) if segments else None
    return PackedTokens(ids, lengths, types)


def run_reference(model: Any, tokens: PackedTokens, **options: Any) -> Any:
    """Give the reference the same batch, padded on the right."""
    inputs = {
        "input_ids": tokens.pad(tokens.input_ids, model.config.pad_token_id),
        "attention_mask": mask_of(tokens),
    }
    if tokens.token_type_ids is not None:
        inputs["token_type_ids"] = tokens.pad(tokens.token_type_ids)
    return model(**inputs, **options)


def mask_of(tokens: PackedTokens) -> Tensor:
    return tokens.pad(torch.ones(tokens.total, dtype=torch.int64))


def our_copy(model: Any, folder: Path) -> Encoder:
    model.save_pretrained(folder)
    return load_encoder(folder)


def assert_same_states(model: Any, encoder: Encoder, tokens: PackedTokens) -> None:
    """Every layer's states and every attention probability agree, packed against padded."""
    real = mask_of(tokens).bool()
    with torch.no_grad():
        theirs = run_reference(model, tokens, output_hidden_states=True, output_attentions=True)
        fast = encoder(tokens)
        ours = encoder(tokens, output_layers=True, output_attentions=True)
    assert_close(fast.hidden_states, theirs.last_hidden_state[real])
    assert_close(ours.hidden_states, theirs.last_hidden_state[real])
    for mine, their in zip(ours.layer_states, theirs.hidden_states, strict=True):
        assert_close(mine, their[real])
    for mine, their in zip(ours.attentions, theirs.attentions, strict=True):
        for text, length in enumerate(tokens.lengths):
            assert_close(mine[text], their[text, :, :length, :length])


def assert_same_gradients(model: Any, encoder: Encoder, tokens: PackedTokens, folder: Path) -> None:
    """A loss over the packed states has the gradients of the same loss over padded ones."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(tokens.total, encoder.config.hidden_size, generator=generator)
    theirs = run_reference(model, tokens).last_hidden_state[mask_of(tokens).bool()]
    for states in (encoder(tokens).hidden_states, theirs):
        torch.autograd.backward(states.sub(target).square().sum() / len(states))
    with torch.no_grad():  # gradients travel through our own writer to get their names
        for parameter in (*encoder.parameters(), *model.parameters()):
            parameter.copy_(torch.zeros(()) if parameter.grad is None else parameter.grad)
    save_encoder(encoder, folder)
    assert_same_parameters(AutoModel.from_pretrained(folder), model, TOLERANCE)


def assert_round_trip(model: Any, encoder: Encoder, folder: Path) -> None:
    """What we save, transformers loads with every parameter equal, and so do we."""
    save_encoder(encoder, folder)
    assert_same_parameters(AutoModel.from_pretrained(folder), model)
    again = load_encoder(folder)
    assert again.config == encoder.config
    assert_same_parameters(again, encoder)


def assert_same_parameters(ours: nn.Module, theirs: nn.Module, tolerance: float = 0.0) -> None:
    mine, other = dict(ours.named_parameters()), dict(theirs.named_parameters())
    assert mine.keys() == other.keys()
    for name, parameter in mine.items():
        scale = max(1.0, float(other[name].detach().abs().max()))
        assert_close(parameter, other[name], name, tolerance * scale)


def assert_close(
    ours: Tensor, theirs: Tensor, what: str = "values", tolerance: float = TOLERANCE
) -> None:
    worst = float((ours.detach() - theirs.detach()).abs().max())
    assert worst <= tolerance, f"{what} differ by {worst:.2e}"
