"""Idle OpenMP threads of the calling thread end, and computing goes on afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, threading, time
import torch
from sbert_search.base.threads import end_idle_workers

def threads():
    return len(os.listdir("/proc/self/task"))

def compute():
    # element-wise, since products of matrices may have threads of another library
    return torch.arange(1 << 20, dtype=torch.float32).mul(2).sum().item()

torch.set_num_threads(3)
alone, expected = threads(), float(sum(range(1 << 20)) * 2)
results = [compute()]
team = threads() - alone
end_idle_workers()
after = threads() - alone
results.append(compute())
again = threads() - alone
other = threading.Thread(target=end_idle_workers)
other.start(), other.join()
for _ in range(500):  # the kernel ends a joined thread a moment later
    if threads() - alone <= again:
        break
    time.sleep(0.01)
print(team, after, again, threads() - alone, results[0] == results[1])
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
def test_only_the_idle_threads_of_the_caller_end() -> None:
    environment = {name: v for name, v in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0", "2", "2", "True"]


def test_without_torch_nothing_happens() -> None:
    program = (
        "import sys\n"
        "from sbert_search.base.threads import end_idle_workers\n"
        "end_idle_workers()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
