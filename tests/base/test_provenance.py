import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sbert_search.base.machine import code, command, library_versions, machine


def test_machine_names_what_a_speed_depends_on() -> None:
    described = machine()
    assert described["cpu"]
    assert described["cores"] >= 1
    assert described["memory_gib"] > 0


def test_describing_a_machine_loads_no_torch() -> None:
    program = (
        "import sys; from sbert_search.base.machine import machine; machine(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_torch_adds_its_threads_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["NVIDIA A", "NVIDIA B"]
    cuda = SimpleNamespace(device_count=lambda: len(names), get_device_name=names.__getitem__)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(get_num_threads=lambda: 3, cuda=cuda))
    described = machine()
    assert (described["threads"], described["devices"]) == (3, names)
    names.clear()
    assert "devices" not in machine()


def test_versions_leave_out_what_is_not_installed() -> None:
    found = library_versions(["numpy", "no-such-library"])
    assert found == {"numpy": np.__version__}


def test_code_has_a_full_commit_or_none() -> None:
    commit = code()["commit"]
    assert commit is None or len(commit.removesuffix("-dirty")) == 40


def test_a_command_is_written_without_paths_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["benchmarks/bench.py", "--quick", "--peer-python", str(tmp_path), "--out", "f.json"]
    monkeypatch.setattr(sys, "argv", given)
    assert command() == "python benchmarks/bench.py --quick --peer-python PEER_PYTHON --out f.json"
    monkeypatch.setattr(sys, "argv", ["bench.py", f"--out={tmp_path}", "--metric=a/b"])
    assert command() == "python bench.py --out=OUT --metric=a/b"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "eval" / "run.py"), str(tmp_path / "mini")])
    assert command() == "python eval/run.py mini"
    monkeypatch.setattr(sys, "argv", ["run.py", f"own={tmp_path / 'mini'}", "--set", "a.b=3"])
    assert command() == "python run.py own=mini --set a.b=3"
