"""Every command of the page on clusters runs on a cluster and prints what is shown."""

from __future__ import annotations

import runpy
import shlex
from functools import partial
from pathlib import Path

import pytest

from sbert_search.cli.main import run
from sbert_search.index.building import model_check
from tests.cli.process import in_a_process as sbert_search
from tests.docs.blocks import DOCS, agrees, blocks_of, commands_of
from tests.integrations.ray.conftest import Machines

ADDRESS = "127.0.0.1:6379"  # on the page


def test_the_commands_of_the_page_run(
    machines: Machines,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBERT_SEARCH_MODEL", "hashing")  # starts faster in each worker
    hashing = partial(model_check.as_embedder, "hashing")
    monkeypatch.setattr(model_check, "as_embedder", lambda model, **options: hashing(**options))
    ran = 0
    for block in blocks_of(DOCS / "cluster.md"):
        if block.is_file:
            Path(block.title).write_text(block.body)
        elif block.needs == "a Ray cluster" and block.language == "python":
            script = Path("block.py")
            script.write_text(block.body.replace(ADDRESS, machines.address))
            runpy.run_path(str(script))
            ran += 1
        elif block.needs == "a Ray cluster":
            for command, shown in commands_of(block):
                name, *arguments = shlex.split(command.replace(ADDRESS, machines.address))
                assert name == "sbert-search"
                if "--ray-address" in arguments or "--runner" not in arguments:
                    code, out = run(arguments), capsys.readouterr().out
                else:  # starts a cluster of its own
                    done = sbert_search(*arguments, env={"SBERT_SEARCH_MODEL": "hashing"})
                    code, out = done.code, done.out
                assert code == 0
                assert not shown or agrees(shown, out), f"{command} prints\n{out}"
                ran += 1
    assert ran > 8
