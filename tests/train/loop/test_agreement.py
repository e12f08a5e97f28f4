"""What ranks compare before they train; `tests/train/test_ranks.py` starts real ranks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sbert_search.base.distributed import Ranks
from sbert_search.errors import TrainingError
from sbert_search.train.loop.resume import require_agreement, resumes


class OneOfTwo(Ranks):
    """Rank 0 of two; the other one is on host "b" and has given settings."""

    def gather_values(self, value: object) -> list[object]:
        return [value, {"seed": 2, "data": "abc"} if isinstance(value, Mapping) else "b"]


def test_a_rank_that_differs_is_named_with_both_values() -> None:
    with pytest.raises(TrainingError) as caught:
        require_agreement(OneOfTwo(0, 2), {"seed": 1, "data": "abc"})
    message = str(caught.value)
    assert message.startswith("Rank 1 (on b) does not train the same as rank 0 (on ")
    assert ": seed is 1 on rank 0 and 2 on rank 1. Start all ranks" in message


def test_equal_ranks_and_a_single_one_agree() -> None:
    require_agreement(OneOfTwo(0, 2), {"seed": 2, "data": "abc"})
    require_agreement(Ranks(), {"seed": 2})


def test_only_a_run_that_torchrun_may_restart_resumes_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ckpt-00000005").mkdir()
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    assert not resumes(Ranks(), tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")  # torchrun's default
    assert not resumes(Ranks(), tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert resumes(Ranks(), tmp_path)
    assert not resumes(Ranks(), tmp_path / "none")
