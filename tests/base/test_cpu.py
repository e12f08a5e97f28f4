"""The processor is named from the first paragraph of /proc/cpuinfo, with its model and flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.base import processor as module
from sbert_search.base.processor import Cpu, cpu, switches

INFO = """\
processor\t: 0
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
flags\t\t: sse avx512_vnni avx2 avx512f

processor\t: 1
model name\t: another
"""


def test_this_machine_has_a_name() -> None:
    assert cpu().name
    assert cpu().title.startswith(cpu().name)


def test_the_first_processor_is_described(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(INFO)
    fields = module._first_processor(path)
    assert fields["model name"] == "AMD EPYC"
    assert (fields["cpu family"], fields["model"]) == ("25", "17")
    assert module._first_processor(tmp_path / "absent") == {}


def test_the_title_has_the_model_where_the_system_tells_it() -> None:
    known = Cpu("AMD EPYC", "family 25, model 17", ("avx2", "avx512_vnni", "sse"))
    assert known.title == "AMD EPYC (family 25, model 17)"
    assert known.speed_flags == ("avx2", "avx512_vnni")
    assert Cpu("arm").title == "arm"


def test_switches_are_those_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module.SWITCHES:
        monkeypatch.delenv(name, raising=False)
    assert switches() == {}
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "")
    assert switches() == {"ONEDNN_MAX_CPU_ISA": "AVX2"}
