"""Tables of token ids, made by one process or by several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from torch import Tensor

from sbert_search.base.distributed import Ranks
from sbert_search.train.data import token_table
from sbert_search.train.data.token_table import TokenTable
from tests.models.tiny import tiny_tokenizer

TEXTS = [" ".join(["cat"] * (n % 7 + 1)) for n in range(23)]


class Exchange:
    """What the ranks of one process, each in a thread, give each other."""

    def __init__(self, world: int) -> None:
        self.world, self.barrier = world, Barrier(world)
        self.given: list[Tensor] = [torch.empty(0)] * world

    def gather(self, rank: int, rows: Tensor) -> tuple[Tensor, slice]:
        self.given[rank] = rows
        self.barrier.wait(10)
        start = sum(map(len, self.given[:rank]))
        whole = torch.cat(self.given)
        self.barrier.wait(10)
        return whole, slice(start, start + len(rows))


class ThreadRanks(Ranks):
    """A rank in a thread."""

    exchange: Exchange

    def gather(self, rows: Tensor) -> tuple[Tensor, slice]:
        return self.exchange.gather(self.rank, rows)

    def sum(self, values: object) -> list[float]:
        rows = torch.tensor([values], dtype=torch.float64)
        total: list[float] = self.gather(rows)[0].sum(0).tolist()
        return total


def on_ranks(world: int, work: Callable[[Ranks], TokenTable]) -> list[TokenTable]:
    exchange, made = Exchange(world), dict[int, TokenTable]()

    def run(rank: int) -> None:
        ranks = ThreadRanks(rank, world)
        object.__setattr__(ranks, "exchange", exchange)
        made[rank] = work(ranks)

    threads = [Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [made[rank] for rank in range(world)]


@pytest.mark.parametrize("world", [2, 3, 30])  # 30: more ranks than texts
def test_ranks_make_the_table_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    monkeypatch.setattr(token_table, "_EXCHANGED_AT_ONCE", 10)
    tokenizer = tiny_tokenizer(tmp_path, max_len=8)
    alone = TokenTable.of(TEXTS, tokenizer)
    for table in on_ranks(world, lambda ranks: TokenTable.of(TEXTS, tokenizer, ranks)):
        assert np.array_equal(table.ids, alone.ids)
        assert np.array_equal(table.starts, alone.starts)
        assert table.fingerprint() == alone.fingerprint()
    assert alone.lengths.tolist() == [min(n % 7 + 3, 8) for n in range(23)]
