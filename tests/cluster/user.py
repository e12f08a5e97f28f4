"""What a user of a cluster writes: type checkers accept it and know every type.

It is checked and never run; see `tests/typing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from sbert_search import (
    Index,
    RayRunner,
)


def cluster(corpus: Path, out: Path) -> None:
    with RayRunner("10.0.0.1:6379", workers=3) as runner:
        assert_type(runner, RayRunner)
        assert_type(Index.build(corpus, out=out, runner=runner), Index)
