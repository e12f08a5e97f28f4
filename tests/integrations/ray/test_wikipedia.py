"""A build of 101,216 paragraphs on three machines; three times, one is killed and replaced.

The index has the bytes of a build without Ray, and the same answers to the questions of the task
`squad-wikipedia-101k`. It takes minutes, so only `FAULT_SCALE=full` runs it.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path

import pytest

from sbert_search import BuildSettings, Index, RayRunner, SearchEngine
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.index.building.build import build_index
from sbert_search.search.options import SearchMode
from sbert_search.text.labelled.retrieval import read_queries
from tests.cli.process import ROOT
from tests.faults import FULL, keep_result
from tests.index.building.test_ingest import files_of
from tests.integrations.ray.conftest import Machines

DISTRACTORS = 100_000  # paragraphs about which no question is
MODES: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")


@pytest.mark.skipif(not FULL, reason="FAULT_SCALE=full runs it")
def test_killed_machines_change_neither_bytes_nor_answers(
    machines: Machines, real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "eval"))
    script = importlib.import_module("squad_wikipedia")
    script.write(real_data, tmp_path, DISTRACTORS)
    source = tmp_path / script.NAME
    settings = BuildSettings()
    plain = build_index(source, tmp_path / "plain", HashingEmbedder, settings).counts
    quarters = [plain.read * quarter // 4 for quarter in (1, 2, 3)]
    with RayRunner(machines.address, workers=3) as runner, machines.killed_at(quarters) as killed:
        on_ray = build_index(
            source, tmp_path / "ray", HashingEmbedder, settings, embed=runner
        ).counts
    assert len(killed) == 3
    assert max(killed) < plain.read
    assert on_ray == plain
    assert plain.indexed == plain.read
    assert digests(tmp_path / "plain") == digests(tmp_path / "ray")
    one, other = (Index.open(tmp_path / name) for name in ("plain", "ray"))
    rows = one.state.live_rows()
    assert rows.tolist() == other.state.live_rows().tolist()
    assert one.state.doc_ids(rows) == other.state.doc_ids(rows)
    for start in range(0, len(rows), 10_000):
        some = rows[start : start + 10_000]
        assert one.state.vectors(some).tobytes() == other.state.vectors(some).tobytes()
    queries = read_queries(source)
    for mode in MODES:
        run = SearchEngine(one).run(queries, 10, mode=mode)
        assert SearchEngine(other).run(queries, 10, mode=mode) == run
    keep_result(
        "cluster_build",
        {
            "paragraphs": plain.read,
            "machines": 3,
            "machines_killed": len(killed),
            "rows_lost_or_doubled": plain.read - len({*one.state.doc_ids(rows)}),
            "files_that_differ": 0,
            "questions": len(queries),
            "modes": list(MODES),
            "rankings_or_scores_that_differ": 0,
        },
    )


def digests(index: Path) -> list[tuple[str, str]]:
    """Hash all files of an index; the numbers in their names do not count."""
    return [(name, hashlib.sha256(data).hexdigest()) for name, data in files_of(index)]
