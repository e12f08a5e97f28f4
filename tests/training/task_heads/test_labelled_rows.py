import numpy as np
import pytest

from sbert_search.training.task_heads.labelled_rows import dev_metrics


def test_a_class_that_no_row_has_does_not_count_in_the_mean() -> None:
    logits = np.array([[1, 1, -1], [1, -1, -1]], dtype=np.float32)
    gold = np.array([[1, 0, 0], [1, 1, 0]])
    found = dev_metrics("several", logits, gold)
    # The first class is right twice (F1 1), the second wrong twice (0); the third does not occur.
    assert found["macro_f1"] == pytest.approx(1 / 2)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))
