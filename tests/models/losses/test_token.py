import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from sbert_search.models import logit_losses as token
from sbert_search.models.logit_losses import (
    IGNORED,
    cosine_loss,
    replaced_token_loss,
    soft_target_loss,
    token_cross_entropy,
)


def test_only_labelled_positions_are_summed_and_counted() -> None:
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)], [5.0, 5.0]])
    total, count = token_cross_entropy(logits, torch.tensor([1, 0, IGNORED]))
    assert total.item() == pytest.approx(math.log(2) + math.log(4))
    assert count.item() == 2


def test_the_ratio_is_the_mean_of_torch_for_any_shape() -> None:
    logits = torch.randn(4, 7, 11)
    labels = torch.randint(0, 11, (4, 7))
    labels[torch.rand(4, 7) < 0.5] = IGNORED
    total, count = token_cross_entropy(logits, labels)
    expected = cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED)
    assert (total / count).item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_batch_without_positions_has_no_loss_and_a_zero_gradient() -> None:
    weight = torch.randn(5, 3, requires_grad=True)
    total, count = token_cross_entropy(
        torch.zeros(0, 3) @ weight.T, torch.zeros(0, dtype=torch.long)
    )
    torch.autograd.backward(total)
    assert (total.item(), count.item()) == (0.0, 0)
    assert weight.grad is not None
    assert not weight.grad.any()


def test_half_precision_is_summed_in_fp32_and_no_label_is_no_loss() -> None:
    logits = torch.randn(3, 5, dtype=torch.bfloat16)
    total, count = token_cross_entropy(logits, torch.full((3,), IGNORED))
    assert total.dtype == torch.float32
    assert (total.item(), count.item()) == (0.0, 0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-3)])
def test_a_gradient_in_parts_is_that_of_the_whole(
    dtype: torch.dtype, atol: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token, "_BLOCK_LOGITS", 40)  # three rows
    torch.manual_seed(0)
    logits = (torch.randn(2, 5, 13) * 30).to(dtype).requires_grad_()  # some probabilities are 0
    labels = torch.randint(0, 13, (2, 5))
    labels[1, 2:4] = IGNORED
    total, _ = token_cross_entropy(logits, labels)
    exact = logits.detach().double().requires_grad_()
    expected = cross_entropy(exact.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.autograd.backward([total / 7, expected / 7])
    assert logits.grad is not None
    assert exact.grad is not None
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert torch.allclose(logits.grad.double(), exact.grad, atol=atol)


@pytest.mark.parametrize("label", [-1, 5])
def test_a_label_outside_the_vocabulary_is_refused(label: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        token_cross_entropy(torch.zeros(1, 5, requires_grad=True), torch.tensor([label]))


def test_replaced_tokens_cost_their_log_odds() -> None:
    logits = torch.tensor([0.0, math.log(3.0), -math.log(3.0)])
    total, count = replaced_token_loss(logits, torch.tensor([True, True, True]))
    assert total.item() == pytest.approx(math.log(2) + math.log(4 / 3) + math.log(4))
    assert count == 3


def test_soft_targets_are_a_divergence_scaled_by_the_temperature() -> None:
    student, teacher = torch.randn(6, 9, requires_grad=True), torch.randn(6, 9, requires_grad=True)
    total, count = soft_target_loss(student, teacher, 2.0)
    expected = torch.nn.KLDivLoss(reduction="batchmean")(
        (student / 2).log_softmax(-1), (teacher / 2).softmax(-1)
    )
    assert (total / count).item() == pytest.approx(4 * expected.item(), abs=1e-6)
    assert soft_target_loss(teacher, teacher, 2.0)[0].item() == pytest.approx(0, abs=1e-6)
    torch.autograd.backward(total)
    assert teacher.grad is None


def test_the_cosine_loss_is_torchs() -> None:
    student, teacher = torch.randn(7, 5), torch.randn(7, 5)
    total, count = cosine_loss(student, teacher)
    expected = torch.nn.CosineEmbeddingLoss()(student, teacher, torch.ones(7))
    assert (total / count).item() == pytest.approx(expected.item(), abs=1e-6)
