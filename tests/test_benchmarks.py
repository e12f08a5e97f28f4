"""The benchmark scripts: that they start, take turns and write the promised record."""

from __future__ import annotations

import importlib
import json
import runpy
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment
from tests.index.dense.test_faiss_gpu import FakeFaiss
from tests.index.dense.test_faiss_gpu import fake as fake  # a fixture

BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("bench_*.py"))

PROGRAM = """
from common import Figure, Results, arguments, compare

turns = []
def ours(): turns.append("ours"); return 4.0
def peer(): turns.append("peer"); return 2.0

results = Results(arguments("").parse_args())
results.add("speed", compare(ours, peer, unit="x/s", repeats=2))
results.add("size", Figure(3.0, "MiB"))
assert turns == ["ours", "peer"] * 3, turns
"""


def run(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=BENCHMARKS, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_explains_itself(script: Path) -> None:
    assert "--quick" in run(script, "--help")


def test_contestants_take_turns_and_the_record_has_its_promised_form(tmp_path: Path) -> None:
    out = tmp_path / "results" / "bench.json"
    table = run("-c", PROGRAM, "--out", out, "--seed", "7")
    assert "ratio 2.000 (2.000 to 2.000)" in table
    record = json.loads(out.read_text())
    assert record["figures"] == {
        "speed": {"value": 4.0, "unit": "x/s", "peer": 2.0, "ratio": 2.0},
        "size": {"value": 3.0, "unit": "MiB", "peer": None, "ratio": None},
    }
    assert record["repeats"]["speed"] == {"ours": [4.0, 4.0], "peer": [2.0, 2.0]}
    assert record["seed"] == 7
    assert {"machine", "commit", "libraries", "command"} <= record.keys()


def test_an_interrupted_run_leaves_its_figures(tmp_path: Path) -> None:
    stopped = PROGRAM.replace('results.add("size"', 'raise SystemExit(0)\nresults.add("size"')
    run("-c", stopped, "--out", tmp_path / "bench.json")
    assert list(json.loads((tmp_path / "bench.json").read_text())["figures"]) == ["speed"]


@pytest.mark.usefixtures("one_thread")
def test_the_gpu_benchmark_runs_to_its_end(
    fake: FakeFaiss, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("bench_gpu")
    for name, value in {"QUICK_ROWS": 3_000, "N_QUERIES": 20, "QUICK_FACTORY": "IVF16,SQ8"}.items():
        monkeypatch.setattr(script, name, value)
    out = tmp_path / "gpu.json"
    monkeypatch.setattr("sys.argv", ["bench_gpu.py", "--quick", "--out", str(out)])
    script.main()
    figures = json.loads(out.read_text())["figures"]
    assert figures["flat_overlap"]["value"] == 1.0
    assert figures["ivf_recall"]["ratio"] == pytest.approx(1.0, abs=0.01)
    assert {"upload", "search"} <= set(fake.calls)


@pytest.mark.thorough
def test_two_commits_answer_the_same_blocks_of_hybrid_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBERT_SEARCH_DATA", raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("bench_hybrid")
    for name, value in {"QUICK_SIZES": (60,), "QUICK_QUERIES": 8, "BLOCK": 4}.items():
        monkeypatch.setattr(script, name, value)
    asked_for = []

    def checked_out(commit: str, folder: Path) -> AbstractContextManager[Path]:
        asked_for.append(commit)
        return nullcontext(ROOT)

    monkeypatch.setattr(script, "checked_out", checked_out)
    out = tmp_path / "hybrid.json"
    line = ["bench_hybrid.py", "--quick", "--before", "abc", "--out", str(out)]
    monkeypatch.setattr("sys.argv", line)
    script.main()
    record = json.loads(out.read_text())
    assert asked_for == ["abc"]
    assert len(record["repeats"]["hybrid_60"]["ours"]) == 2 * 2  # rounds x blocks
    assert all(value > 0 for values in record["repeats"]["hybrid_60"].values() for value in values)
    assert record["figures"]["hybrid_60_shared_hits"]["value"] == 1.0  # of one and the same code


@pytest.mark.thorough
def test_two_commits_do_the_same_works_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SBERT_SEARCH_DATA", raising=False)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("bench_commits")
    monkeypatch.setattr(script, "QUICK_DOCUMENTS", 60)
    monkeypatch.setattr(script, "checked_out", lambda commit, folder: nullcontext(ROOT))
    out = tmp_path / "commits.json"
    line = ["bench_commits.py", "--quick", "--before", "abc", "--repeats", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", line)
    script.main()
    record = json.loads(out.read_text())
    for work in script.WORKS:
        assert len(record["repeats"][work]["ours"]) == len(record["repeats"][work]["peer"]) == 2
        assert record["figures"][f"{work}_ratio_from"]["value"] > 0


def test_the_interval_of_a_median_ratio_is_that_of_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    interval = importlib.import_module("bench_commits").median_interval
    assert interval([1.0] * 9) == (1.0, 1.0)
    low, high = interval([0.9, 0.95, 1.0, 1.05, 1.1])
    assert low == 0.9
    assert high == 1.1


def test_times_of_queries_without_hits_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("bench_hybrid")
    found, nothing = script.Answer(1.0, [["a", "b"]]), script.Answer(1.0, [[]])
    assert script.overlap([found], [script.Answer(1.0, [["b", "c"]])]) == 0.5
    with pytest.raises(SystemExit, match="no hits"):
        script.overlap([found], [nothing])


def test_the_guide_tells_the_measured_costs_of_search_options() -> None:
    table = runpy.run_path(str(BENCHMARKS / "options_table.py"))["table"]
    guide = (ROOT / "docs/guides/search-options.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in guide, "run benchmarks/options_table.py"


@pytest.mark.thorough
def test_the_probe_of_a_commit_runs_and_finds_the_same_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the server that it starts
    script = importlib.import_module("probe")
    trainers = script.small_world.trainers
    monkeypatch.setattr(
        script.small_world, "trainers", lambda *given: {"bert": trainers(*given)["bert"]}
    )
    monkeypatch.setattr(script, "QUICK_ROWS", 40)
    found = []
    for parts in (script.PARTS, script.PARTS[:-1]):  # the last part starts a server
        folder = tmp_path / str(len(parts))
        folder.mkdir()
        monkeypatch.chdir(folder)
        found.append(script.probe(script.Tree(ROOT), None, quick=True, parts=parts))
    assert found[0].items() >= found[1].items()
    groups = {name.split("/")[0] for name in found[0]}
    assert {"vectors", "ranking", "weights", "loss", "dev", "build", "option"} <= groups
    assert {"exit code", "error", "public names", "signature", "operation", "schema"} <= groups
    assert found[0]["exit code/bad row left out"] == 3
    assert str(tmp_path) not in json.dumps(found[0])


def test_differences_of_two_commits_are_listed_and_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("compare_commits")
    monkeypatch.setattr(script, "checked_out", lambda commit, folder: nullcontext(Path(commit)))
    facts = {"base": {"loss/bert/1": "0x1", "same": 1}, "head": {"loss/bert/1": "0x2", "same": 1}}
    monkeypatch.setattr(script, "probed", lambda tree, *_: facts[str(tree)])
    ends = []
    for head in ("base", "head"):
        monkeypatch.setattr("sys.argv", ["compare_commits.py", "base", head])
        ends.append((script.main(), capsys.readouterr().out.strip().splitlines()[-1]))
    assert ends == [(0, "0 of 2 values differ."), (1, "1 of 2 values differ.")]
    many = {f"loss/bert/{n}": n for n in range(20)}
    lines = list(script.report(many, {}))
    assert lines[:3] == ["loss/bert: 20 differ", "  loss/bert/0", "    base 0"]
    assert lines[3].strip() == "head (absent)"
    assert lines[-1] == "  and 12 more"


SAMPLE = '''"""A module."""

import os


def lower(text: str) -> str:
    """Say it."""
    # why
    if not text:
        raise ValueError(
            "empty"
        )
    return text.lower()
'''


@pytest.mark.thorough
def test_each_line_is_counted_as_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("count")
    (tmp_path / "said.py").write_text(SAMPLE)
    assert script.count_lines(tmp_path) == {
        "modules": 1, "lines": 13, "code": 1, "docstring": 2, "comment": 1, "blank": 3,
        "import": 1, "header": 1, "raise": 4,
    }  # fmt: skip
    lower = runpy.run_path(str(tmp_path / "said.py"))["lower"]
    assert script.entered(tmp_path, lambda: lower("A")) == {"functions": 1, "files": 1}
    monkeypatch.setattr(script, "traces", lambda package: {"query": {"functions": 1, "files": 1}})
    counts = script.count(ROOT)
    assert counts["option slots"] > counts["commands"] > 0
    known = json.loads((BENCHMARKS / "results/count_2_rooms.json").read_text())
    assert counts.keys() == known.keys() - {
        f"{name}: {what} entered"
        for name in ("indexing", "encoding")
        for what in ("functions", "files")
    }
