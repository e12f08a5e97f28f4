import subprocess
import sys

import numpy as np

from sbert_search.runtime.provenance import code, library_versions, machine


def test_machine_names_what_a_speed_depends_on() -> None:
    described = machine()
    assert described["cpu"]
    assert described["cores"] >= 1
    assert described["memory_gib"] > 0


def test_describing_a_machine_loads_no_torch() -> None:
    program = (
        "import sys; from sbert_search.runtime.provenance import machine; machine(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_versions_leave_out_what_is_not_installed() -> None:
    found = library_versions(["numpy", "no-such-library"])
    assert found == {"numpy": np.__version__}


def test_code_has_a_full_commit_or_none() -> None:
    commit = code()["commit"]
    assert commit is None or len(commit.removesuffix("-dirty")) == 40
