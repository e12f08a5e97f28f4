"""Measure the training loop's own time, without the model's, in masked language modelling.

The model has 6 layers of width 384; a batch has 32 texts.

The loop's own time is the time of whole steps minus the time of the forward pass, the backward pass
and the optimizer. What is left is the time of reading data, collation, gradient clipping, failure
checks and the log. All parts are timed while the loop runs. The peer is a plain PyTorch loop over
the same batches; both loops run alternately.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from common import Figure, Results, arguments, compare, repeats_of
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sbert_search.base.progress import set_quiet
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.logit_losses import IGNORED, token_cross_entropy
from sbert_search.train.loop.loop import TrainConfig, train
from sbert_search.train.loop.objective import Batch, Batches, BatchingConfig, Losses, Rows
from sbert_search.train.loop.optim import OptimConfig, make_optimizer
from sbert_search.train.loop.schedule import BudgetConfig

MASK, FIRST_WORD = 103, 1000  # in BERT's vocabulary: id of [MASK], and first id of words


class Masked(nn.Module):
    """An encoder whose word embeddings are also the output layer for masked tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(
            EncoderConfig(hidden_size=384, layers=6, heads=12, intermediate_size=1536)
        )

    def forward(self, tokens: PackedTokens, positions: Tensor) -> Tensor:
        """Return the logits of the tokens at some positions, float (positions, vocab)."""
        states = self.encoder(tokens).hidden_states[positions]
        return linear(states, self.encoder.embeddings.word.weight)


def data(tokens: int, batch: int, seed: int) -> Batches:
    """Make batches of random texts of one length, with 15 % of their words masked."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(FIRST_WORD, 30_000, (16 * batch, tokens))
    masked = draw.random(ids.shape) < 0.15

    def collate(rows: Rows, epoch: int) -> Batch:
        texts = np.where(masked[rows], MASK, ids[rows])
        labels = torch.from_numpy(np.where(masked[rows], ids[rows], IGNORED).ravel())
        packed = PackedTokens(torch.from_numpy(texts.ravel()), (tokens,) * len(rows))
        positions = (labels != IGNORED).nonzero().squeeze(1)
        return Batch((packed, positions, labels[positions]), rows, {"mlm": len(positions)})

    config = BatchingConfig(size=batch)
    return Batches([tokens] * len(ids), collate, config, seed=seed, fingerprint="random")


def objective(model: nn.Module, batch: Batch) -> Losses:
    """Compute the loss of the masked words."""
    assert isinstance(batch.inputs, tuple)
    tokens, positions, labels = batch.inputs
    return Losses({"mlm": token_cross_entropy(model(tokens, positions), labels)})


class Clock:
    """Measures the seconds of each part of a step, summed over all steps."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("forward", "backward", "optimizer"), 0.0)
        self.first = self.last = 0.0  # start of the first forward pass, end of the last update
        self._mark = 0.0

    def start(self, *_: object) -> None:
        """Note the time at which a part starts."""
        self._mark = time.perf_counter()
        self.first = self.first or self._mark

    def stop(self, part: str) -> None:
        """Add the time since `start` to a part."""
        self.last = time.perf_counter()
        self.seconds[part] += self.last - self._mark

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to a part."""
        self.start()
        yield
        self.stop(name)


def our_loop(steps: int, options: argparse.Namespace, clock: Clock) -> float:
    """Train; return the seconds from the first forward pass to the last update."""
    torch.manual_seed(options.seed)
    backward = torch.autograd.backward

    def timed_objective(model: nn.Module, batch: Batch) -> Losses:
        with clock.part("forward"):
            return objective(model, batch)

    def timed_backward(loss: Tensor) -> None:
        with clock.part("backward"):
            backward(loss)

    hooks = (
        register_optimizer_step_pre_hook(clock.start),
        register_optimizer_step_post_hook(lambda *_: clock.stop("optimizer")),
    )
    config = TrainConfig(device="cpu", budget=BudgetConfig(steps=steps), seed=options.seed)
    with (
        tempfile.TemporaryDirectory() as out,
        mock.patch("torch.autograd.backward", timed_backward),
    ):
        batches = data(options.tokens, options.batch, options.seed)
        train(timed_objective, batches, config, model=Masked(), out=Path(out))
    for hook in hooks:
        hook.remove()
    return clock.last - clock.first


def plain_loop(steps: int, options: argparse.Namespace) -> float:
    """Run the same steps without the training loop; gradients are still clipped."""
    torch.manual_seed(options.seed)
    model, batches = Masked(), data(options.tokens, options.batch, options.seed)
    made = [batches.collate(batches.rows(0, step), 0) for step in range(steps)]
    optimizer = make_optimizer(model, OptimConfig())
    start = time.perf_counter()
    for batch in made:
        optimizer.zero_grad()
        total, count = objective(model, batch).sums["mlm"]
        torch.autograd.backward(total / count)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return time.perf_counter() - start


def embedding_update(options: argparse.Namespace) -> float:
    """Return the median seconds of an AdamW update of the word embeddings alone."""
    table = nn.Embedding(30_522, 384)
    optimizer = make_optimizer(table, OptimConfig())
    table.weight.grad = torch.zeros_like(table.weight)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2]


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of every text")
    options = parser.parse_args()
    set_quiet(True)
    results = Results(options)
    steps, repeats = 3 if options.quick else 10, repeats_of(options)
    tokens: int = steps * options.batch * options.tokens
    clocks: list[tuple[float, Clock]] = []

    def ours() -> float:
        clock = Clock()
        clocks.append((our_loop(steps, options, clock), clock))
        return tokens / clocks[-1][0]

    def peer() -> float:
        return tokens / plain_loop(steps, options)

    results.add("tokens_per_s", compare(ours, peer, unit="tokens/s", repeats=repeats))
    whole = sum(seconds for seconds, _ in clocks[1:])
    shares = {
        part: 100 * sum(clock.seconds[part] for _, clock in clocks[1:]) / whole
        for part in ("forward", "backward", "optimizer")
    }
    results.add("overhead", Figure(100 - sum(shares.values()), "% of a step"))
    for part, share in shares.items():
        results.add(part, Figure(share, "% of a step"))
    step_s = whole / (steps * (len(clocks) - 1))
    results.add(
        "word_table_update", Figure(100 * embedding_update(options) / step_s, "% of a step")
    )


if __name__ == "__main__":
    main()
