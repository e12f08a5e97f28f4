"""Answers of a server whose shards are searched on a cluster that has lost one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.cluster import holders
from sbert_search.cluster.shard_worker import ShardWorker
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ClusterError
from sbert_search.index.index import Index
from sbert_search.serve.access import AccessTokens
from sbert_search.serve.problems import Problem
from sbert_search.serve.state import Served, ServeSettings, open_served
from tests.cluster.processes import LocalCluster, LocalRunner
from tests.index.shards.test_index import some_rows
from tests.serve.mcp.test_tools import call


def served(folder: Path, runner: LocalRunner) -> Served:
    settings = ServeSettings(indexes={"i": folder}, tokens=AccessTokens({}), runner=runner)
    return open_served(settings)


def test_an_answer_names_the_lost_shard_or_is_a_problem(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(holders, "LOST_S", 0.0)
    Index.build(some_rows(60), out=tmp_path / "i", model=HashingEmbedder(16), n_shards=3)
    partial = served(tmp_path / "i", LocalRunner(cluster, partial=True))
    assert call(partial, "search", query="mill")["missing_shards"] == []
    strict = served(tmp_path / "i", LocalRunner(cluster))
    for process in (cluster.processes[1], cluster.processes[4]):
        process.running = False
    for name, arguments in (("search", {"query": "mill"}), ("similar", {"id": "d1"})):
        found = call(partial, name, **arguments)
        assert found["missing_shards"] == ["shard-0001"]
        assert found["hits"]
        with pytest.raises(Problem, match="has lost a part of it; try again") as raised:
            call(strict, name, **arguments)
        assert (raised.value.status, raised.value.headers) == (503, {"retry-after": "1"})
        assert "i: shard-0001 of" in capsys.readouterr().err


def test_a_fault_that_stays_does_not_ask_for_another_try(
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Index.build(some_rows(60), out=tmp_path / "i", model=HashingEmbedder(16), n_shards=3)
    strict = served(tmp_path / "i", LocalRunner(cluster))

    def search(self: ShardWorker, *arguments: object) -> None:
        raise ClusterError("there has other versions.")

    monkeypatch.setattr(ShardWorker, "search", search)
    with pytest.raises(Problem, match="cannot search the index; see the log") as raised:
        call(strict, "search", query="mill", mode="dense")
    assert (raised.value.status, raised.value.headers) == (503, {})
    assert "i: there has other versions." in capsys.readouterr().err
