from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.world import World

# A busy machine is no failure: no test asserts a time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep exported graphs and remembered hashes of tests out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _heard_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test as a command does, with notes on stderr, whatever the test before set."""
    monkeypatch.setattr("sbert_search.base.progress._quiet", False)
    monkeypatch.setattr("sbert_search.base.progress._display", "auto")
    monkeypatch.setattr("sbert_search.base.progress._note_level", 20)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets; a test that needs it is skipped where there is none."""
    folder = os.environ.get("SBERT_SEARCH_DATA")
    if not folder:
        pytest.skip("SBERT_SEARCH_DATA is not set")
    return Path(folder)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread: faster for small matrices, far more so on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The small world of the mission, whose models the tests of a process share."""
    from tests.world import World

    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session", autouse=True)
def heard_interrupts() -> None:
    """Hear Ctrl-C, here and in children, also where the tests were started in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder on a RAM file system where there is one, for tests that sync thousands of times."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(dir=memory))
    yield folder
    shutil.rmtree(folder)
