"""Measure, on one block with its weights, in which precision a CPU computes an encoder fastest."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from sbert_search.base.device import autocast, has_onednn
from sbert_search.base.verdicts import Candidate, Timed, Verdict, verdict_on
from sbert_search.models.encoder.encoder import Block, Encoder
from sbert_search.models.encoder.inference_layers import (
    Calibration,
    RangeCounter,
    pack,
    replace_layers,
)
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.self_attention import RelativePositions

EXACT = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""The precisions that "auto" may choose on a CPU, the most exact first."""

_SENTENCES = (8, 12, 16, 16, 20, 20, 24, 32)  # lengths of texts in tokens
_PASSAGES = (160, 224, 256, 96)
_PROBE = (16, 16)  # lengths of texts for the probe of a `Candidate`
# Operations of one trial of inference. It takes 2 to 10 ms; on a busy machine, a longer trial would
# seldom run without an interruption.
_OPERATIONS = 0.8e9
_TRAINING = 4e9  # operations of one trial of training, forward and backward
_FEWEST_TOKENS, _MOST_TOKENS = 64, 1024
_FEWEST_WEIGHTS = 1 << 17  # with fewer weights in a block, fp32 is used without a measurement


def inference_precision(encoder: Encoder) -> Verdict | None:
    """Find the precision in which this CPU computes an encoder fastest in inference.

    The encoder is in float32 on the CPU; it is not changed. None: the blocks are so small that the
    precision does not matter.
    """
    if _weights(encoder) < _FEWEST_WEIGHTS:
        return None
    tokens = _tokens(encoder, _OPERATIONS)
    batches = [_cut(_SENTENCES, tokens), _cut(_PASSAGES, tokens)]
    return verdict_on(
        "precision of inference",
        _shapes(encoder),
        f"{_described(encoder)}; sentences and passages of {tokens:,} tokens each",
        {name: partial(_frozen, encoder, dtype, batches) for name, dtype in EXACT.items()},
    )


def training_precision(encoder: Encoder, *, tokens: int, length: int) -> Verdict | None:
    """Find the precision in which this CPU trains an encoder fastest; its weights stay in fp32.

    ``tokens`` is the number of tokens of a forward pass, ``length`` the mean number of tokens of a
    text. Encoder and result are as in `inference_precision`.
    """
    if _weights(encoder) < _FEWEST_WEIGHTS:
        return None
    tokens = _power_of_2(max(_FEWEST_TOKENS, min(tokens, _tokens(encoder, _TRAINING / 3))))
    length = min(tokens, _power_of_2(length), encoder.config.max_positions)
    texts = _cut((length, max(1, 3 * length // 4), max(1, length // 2)), tokens)
    with torch.random.fork_rng(devices=[]):  # dropout draws random numbers
        return verdict_on(
            "precision of training",
            {**_shapes(encoder), "tokens": tokens, "length": length},
            f"{_described(encoder)}; a step of {tokens:,} tokens, texts of up to {length:,}",
            {name: partial(_trained, encoder, dtype, texts) for name, dtype in EXACT.items()},
        )


def _trained(encoder: Encoder, dtype: torch.dtype, texts: Sequence[int]) -> Candidate:
    """Prepare one block for training, with gradients of its weights and of its input."""
    block = copy.deepcopy(cast(Block, encoder.blocks[0])).train().requires_grad_(True)

    def timed(lengths: Sequence[int]) -> Timed:
        tokens = _packed(lengths)
        states, relative = _states(encoder, tokens, torch.float32)
        states.requires_grad_()

        @torch.enable_grad()
        def run() -> None:
            block.zero_grad()
            states.grad = None
            with autocast(states.device, dtype):
                output: Tensor = block(states, tokens, relative=relative)[0]
            torch.autograd.backward(output, torch.ones_like(output))

        return Timed(run, sum(lengths))

    return Candidate(timed(_PROBE), [timed(texts)])


def fastest_with_int8(encoder: Encoder, calibration: Calibration) -> Verdict | None:
    """Find the fastest of fp32, bf16 and int8 as `inference_precision` does.

    ConfigError: this CPU computes int8 products wrongly or far too slowly.
    """
    exact = inference_precision(encoder)
    if exact is None:
        return None
    tokens = _tokens(encoder, _OPERATIONS)
    batches = [_cut(_SENTENCES, tokens), _cut(_PASSAGES, tokens)]
    dtype = EXACT[exact.choice]
    return verdict_on(
        "fastest precision of inference",
        {**_shapes(encoder), "exact_layers": sorted(calibration.exact)},
        f"{_described(encoder)}; sentences and passages of {tokens:,} tokens each",
        {
            exact.choice: partial(_frozen, encoder, dtype, batches),
            "int8": partial(_quantized, encoder, calibration, dtype, batches),
        },
    )


def _quantized(
    encoder: Encoder,
    calibration: Calibration,
    dtype: torch.dtype,
    batches: Sequence[Sequence[int]],
) -> Candidate:
    """Prepare one block for inference, as `freeze_int8` does."""
    block = copy.deepcopy(cast(Block, encoder.blocks[0])).eval().requires_grad_(False)
    replace_layers(block, 0, encoder.config, calibration, RangeCounter(), dtype)
    return _timed(encoder, block, torch.float32, batches)


def _frozen(encoder: Encoder, dtype: torch.dtype, batches: Sequence[Sequence[int]]) -> Candidate:
    """Prepare one block for inference, as `freeze` does."""
    block = copy.deepcopy(cast(Block, encoder.blocks[0])).to(dtype).eval().requires_grad_(False)
    if has_onednn(dtype):
        pack(block, encoder.config)
    return _timed(encoder, block, dtype, batches)


def _timed(
    encoder: Encoder, block: Block, dtype: torch.dtype, batches: Sequence[Sequence[int]]
) -> Candidate:
    def timed(lengths: Sequence[int]) -> Timed:
        tokens = _packed(lengths)
        states, relative = _states(encoder, tokens, dtype)

        @torch.inference_mode()
        def run() -> Tensor:
            output: Tensor = block(states, tokens, relative=relative)[0]
            return output

        return Timed(run, sum(lengths))

    return Candidate(timed(_PROBE), [timed(lengths) for lengths in batches])


def _packed(lengths: Sequence[int]) -> PackedTokens:
    """Make a batch of texts whose token ids are all 0, since a block does not read them."""
    return PackedTokens(torch.zeros(sum(lengths), dtype=torch.int64), tuple(sorted(lengths)))


def _states(
    encoder: Encoder, tokens: PackedTokens, dtype: torch.dtype
) -> tuple[Tensor, RelativePositions]:
    """Return hidden states (total, hidden), random but always the same, and relative positions."""
    shape = (tokens.total, encoder.config.hidden_size)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    return states, encoder.relative_positions(tokens).to(dtype)


def _tokens(encoder: Encoder, operations: float) -> int:
    """Return how many tokens a block processes with ``operations`` operations, 64 to 1,024."""
    tokens = int(operations / (2 * _weights(encoder)))
    return max(_FEWEST_TOKENS, min(_MOST_TOKENS, tokens))


def _power_of_2(number: int) -> int:
    """Round down to a power of 2, so that similar batches share one measurement."""
    return 1 << max(0, number.bit_length() - 1)


def _weights(encoder: Encoder) -> int:
    """Count the weights of the linear layers of a block."""
    config = encoder.config
    return config.hidden_size * (4 * config.hidden_size + config.up_size + config.intermediate_size)


def _cut(lengths: Sequence[int], tokens: int) -> list[int]:
    """Repeat ``lengths`` until their sum is ``tokens``; the last length is cut to fit."""
    texts: list[int] = []
    while (left := tokens - sum(texts)) > 0:
        texts.append(min(lengths[len(texts) % len(lengths)], left))
    return texts


def _shapes(encoder: Encoder) -> dict[str, object]:
    """Return everything about an encoder that the time of its blocks depends on."""
    config = encoder.config
    return {
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "heads": config.heads,
        "activation": config.activation,
        "terms": list(config.attention_terms),
        "distances": config.relative_positions,
        "buckets": config.position_buckets,
        "causal": config.causal,
        "gated": config.gated,
        "pre_norm": config.pre_norm,
        "rotary": config.rotary_base is not None,
    }


def _described(encoder: Encoder) -> str:
    config = encoder.config
    return (
        f"a layer of {config.hidden_size:,} x {config.intermediate_size:,} with {config.heads} "
        "heads"
    )
