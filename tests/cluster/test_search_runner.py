"""The options of a search on a cluster, without Ray."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.cluster import holders, runner
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.index import Index
from tests.cli.options.test_config_file import DEFAULTS, assert_defaults_do_not_stop, index
from tests.cluster.conftest import cluster
from tests.cluster.processes import LocalCluster, LocalRunner
from tests.index.shards.test_index import some_rows

__all__ = ["cluster", "index"]  # fixtures

ON_RAY = ("--runner", "ray", "--mode", "lexical")


@pytest.fixture
def folder(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, dict[str, object]]:
    """Make an index of three shards; the second process of each command is lost at once."""
    given: dict[str, object] = {}

    @contextlib.contextmanager
    def opened(address: str | None, **options: object) -> Iterator[LocalRunner]:
        given.update(options, address=address)
        made = LocalRunner(cluster, partial=bool(options["partial"]))
        cluster.processes[-2].running = False
        yield made

    monkeypatch.setattr(runner, "RayRunner", opened)
    monkeypatch.setattr(holders, "LOST_S", 0.0)
    Index.build(some_rows(60), out=tmp_path / "i", model=HashingEmbedder(16), n_shards=3)
    return tmp_path / "i", given


def test_a_partial_answer_names_the_lost_shards(
    folder: tuple[Path, dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, given = folder
    search = ["search", str(path), *ON_RAY, "--partial", "--replicas", "2", "--workers", "5"]
    search += ["--shard-timeout", "9"]
    assert run([*search, "--ray-address", "h:1", "mill", "--json"]) == 0
    shown = capsys.readouterr()
    *hits, last = map(json.loads, shown.out.splitlines())
    assert last == {"missing_shards": ["shard-0001"]}
    assert [hit["rank"] for hit in hits] == list(range(1, 11))
    assert "Lost shards, whose documents are not searched: shard-0001." in shown.err
    assert given == {
        **{"address": "h:1", "workers": 5, "replicas": 2, "partial": True},
        "shard_timeout_s": 9.0,
    }
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "a", "text": "mill"}\n{"_id": "b", "text": "river"}\n')
    assert run([*search, "--queries", str(queries), "--json", "-k", "2"]) == 0
    shown = capsys.readouterr()
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert [(line["query_id"], "missing_shards" in line) for line in lines] == [
        *[("a", False), ("a", False), ("a", True)],
        *[("b", False), ("b", False), ("b", True)],
    ]
    assert shown.err.count("Lost shards") == 1
    like = [*search[:4], "--like", "d1", "--partial", "-k", "1", "--shard-timeout", "10"]
    assert run(like) == 0
    assert "Lost shards" in capsys.readouterr().err
    assert given["shard_timeout_s"] == 10.0


def test_a_lost_shard_is_an_error_by_default(
    folder: tuple[Path, dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", str(folder[0]), *ON_RAY, "mill"]) == 1
    assert "shard-0001 of " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mill", "--partial"], "--partial needs --runner ray."),
        (["mill", "--replicas", "2"], "--replicas needs --runner ray."),
        (["mill", "--workers", "2"], "--workers needs --runner ray."),
        (["mill", "--shard-timeout", "2"], "--shard-timeout needs --runner ray."),
        (
            [*ON_RAY, "--partial", "--queries", "q", "--run-out", "r"],
            "--run-out names no lost shards; leave out --partial.",
        ),
    ],
)
def test_wrong_usage(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_default_without_effect_does_not_stop_a_search(
    index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sbert-search.toml").write_text(DEFAULTS + "workers = 2\n")
    assert_defaults_do_not_stop(["--runner", "local"], index, capsys)
