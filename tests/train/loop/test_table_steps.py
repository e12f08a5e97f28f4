import copy
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from sbert_search.train.loop.optim import (
    OptimConfig,
    TableSteps,
    clip_divisor,
    clipped_step,
    gradient_norm,
    make_optimizer,
)

WORDS, WIDTH = 4_100, 256  # a little more than 2^20 elements, and a last block of 4 rows
BATCHES = ([1, 2, 2, 700], [4_099, 2], [0, 64, 63], [1], [3_000, 3_000])


class Model(nn.Module):
    """Words whose mean a linear layer maps to one value; a tied one scores all words instead."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.output = nn.Linear(WIDTH, WORDS if tied else 1)
        if tied:
            self.output.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.output(self.words(ids).mean(dim=0))
        return scores.square().sum()


def _model(*, tied: bool = False) -> Model:
    torch.manual_seed(5)
    return Model(tied=tied)


def _backward(model: Model, ids: Sequence[int]) -> None:
    model.zero_grad()
    torch.autograd.backward(model(torch.tensor(ids)))


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_updates_from_rows_have_the_bits_of_dense_updates(clip: float, decay: float) -> None:
    config = OptimConfig(lr=0.01, weight_decay=decay)
    ours, theirs = _model(), _model()
    optimizers = [make_optimizer(model, config) for model in (ours, theirs)]
    tables = TableSteps(ours)
    for number, ids in enumerate(BATCHES):
        with tables.sparse_gradients():
            _backward(ours, ids)
        if number == 3:  # as after a resume: what is active must follow from the moments
            tables = TableSteps(ours)
        _backward(theirs, ids)
        gradients = tables.take_gradients()
        norm = gradient_norm(theirs)
        of_rows = gradient_norm(ours, [gradient.values() for gradient in gradients.values()])
        torch.testing.assert_close(of_rows, norm)
        for optimizer in optimizers:
            clipped_step(optimizer, norm, clip)
        tables.step(optimizers[0], gradients, clip_divisor(norm, clip))
        for ours_now, theirs_now in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(ours_now, theirs_now)
    for slot in ("step", "exp_avg", "exp_avg_sq"):
        mine, other = (
            optimizer.state[model.words.weight][slot]
            for optimizer, model in zip(optimizers, (ours, theirs), strict=True)
        )
        assert torch.equal(mine, other)


def test_gradients_of_micro_batches_are_summed_by_row() -> None:
    model, dense = _model(), _model()
    tables = TableSteps(model)
    with tables.sparse_gradients():
        torch.autograd.backward(model(torch.tensor([7, 8])) + model(torch.tensor([8, 9, 9])))
    torch.autograd.backward(dense(torch.tensor([7, 8])) + dense(torch.tensor([8, 9, 9])))
    (gradient,) = tables.take_gradients().values()
    assert gradient.indices().tolist() == [[7, 8, 9]]
    assert dense.words.weight.grad is not None
    torch.testing.assert_close(gradient.to_dense(), dense.words.weight.grad)
    assert model.words.weight.grad is None  # the optimizer must not update it too


def test_many_micro_batches_need_little_more_memory_than_a_dense_gradient() -> None:
    model, dense = _model(), _model()
    parts = torch.randint(1, WORDS, (5, 3_000))
    with TableSteps(model).sparse_gradients():
        for ids in parts:
            torch.autograd.backward(model(ids))
            assert model.words.weight.grad is not None
            assert model.words.weight.grad._nnz() <= WORDS
    for ids in parts:
        torch.autograd.backward(dense(ids))
    assert model.words.weight.grad is not None
    assert dense.words.weight.grad is not None
    torch.testing.assert_close(model.words.weight.grad.to_dense(), dense.words.weight.grad)


def test_a_dense_gradient_between_sparse_ones_changes_nothing() -> None:
    config = OptimConfig(lr=0.01)
    ours, theirs = _model(), _model()
    optimizers = [make_optimizer(model, config) for model in (ours, theirs)]
    tables = TableSteps(ours)
    for number, ids in enumerate(BATCHES):
        with nullcontext() if number == 1 else tables.sparse_gradients():
            _backward(ours, ids)
        _backward(theirs, ids)
        gradients = tables.take_gradients()
        for optimizer in optimizers:
            optimizer.step()
        tables.step(optimizers[0], gradients, None)
        assert torch.equal(ours.words.weight, theirs.words.weight)


def test_a_table_that_a_linear_layer_shares_keeps_its_dense_gradient() -> None:
    model, dense = _model(tied=True), _model(tied=True)
    tables = TableSteps(model)
    with tables.sparse_gradients():
        _backward(model, [3, 4])
    _backward(dense, [3, 4])
    assert not tables.take_gradients()
    assert model.words.weight.grad is not None
    assert dense.words.weight.grad is not None
    torch.testing.assert_close(model.words.weight.grad, dense.words.weight.grad)


def test_tables_give_dense_gradients_again_after_the_context() -> None:
    """A caller may train the model further, with an optimizer that takes no sparse gradients."""
    model = _model()
    with TableSteps(model).sparse_gradients():
        assert model.words.sparse
    _backward(copy.deepcopy(model), [1])
    _backward(model, [1])
    assert model.words.weight.grad is not None
    assert not model.words.weight.grad.is_sparse


def test_small_tables_are_left_to_the_optimizer() -> None:
    model = nn.Sequential(nn.Embedding(100, 8))
    with TableSteps(model).sparse_gradients():
        torch.autograd.backward(model(torch.tensor([3])).sum())
    (table,) = model.parameters()
    assert table.grad is not None
    assert not table.grad.is_sparse
