import numpy as np
import pytest

from sbert_search.heads.training_rows import dev_metrics
from sbert_search.text.labelled.texts import LabelKind


def test_a_class_that_no_row_has_does_not_count_in_the_mean() -> None:
    logits = np.array([[1, 1, -1], [1, -1, -1]], dtype=np.float32)
    gold = np.array([[1, 0, 0], [1, 1, 0]])
    found = dev_metrics("several", logits, gold)
    # The first class is right twice (F1 1), the second wrong twice (0); the third does not occur.
    assert found["macro_f1"] == pytest.approx(1 / 2)
    assert found["micro_f1"] == pytest.approx(2 * 2 / (3 + 3))


@pytest.mark.parametrize("kind", ["class", "several"])
def test_nan_is_no_class(kind: LabelKind) -> None:
    gold = np.array([0, 1]) if kind == "class" else np.array([[1, 0], [0, 1]])
    logits = np.array([[1, -1], [-1, 1]], dtype=np.float32)
    right = dev_metrics(kind, logits, gold)
    assert set(right.values()) == {1.0}
    logits[0, 1] = np.nan
    assert dev_metrics(kind, logits, gold) == pytest.approx(
        dict.fromkeys(right, np.nan), nan_ok=True
    )
