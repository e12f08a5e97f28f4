"""The files of docs/deploy: their commands run, and systemd accepts the unit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from sbert_search.embed.engines.graph import GRAPH, MANIFEST, WEIGHTS
from sbert_search.serve.access import ServerLimits
from tests.cli.process import ROOT, environment
from tests.serve.live import READ, Live, live_server

DEPLOY = ROOT / "docs" / "deploy"


def _steps(name: str) -> list[str]:
    """Return the commands of an instruction of the Containerfile."""
    lines = (DEPLOY / "Containerfile").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def _command_of_the_image() -> list[str]:
    words: list[str] = json.loads(_steps("CMD")[0])
    return words


def _health_check() -> list[str]:
    words: list[str] = json.loads(_steps("HEALTHCHECK")[0].partition(" CMD ")[2])
    return words


def _unit() -> dict[str, str]:
    lines = (DEPLOY / "sbert-search.service").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def _check_health(live: Live) -> int:
    words = [word.replace("8080", str(live.port)) for word in _health_check()]
    return subprocess.run([sys.executable, *words[1:]], capture_output=True).returncode


@pytest.mark.thorough
def test_the_health_check_of_the_image_says_whether_a_server_is_ready(built: Path) -> None:
    program, serve, index, *options = _command_of_the_image()
    assert (program, serve, index) == ("sbert-search", "serve", "/srv/my.index")
    with live_server(built, *options, env={"SBERT_SEARCH_TOKENS": READ}) as live:
        assert _check_health(live) == 0
        assert live.stop() == 0
        assert _check_health(live) == 1


def test_the_image_installs_extras_that_exist_and_runs_as_a_user() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [install] = [step for step in _steps("RUN") if "sbert-search" in step]
    found = re.search(r"sbert-search\[(.*)\]", install)
    assert found is not None
    assert set(found[1].split(",")) <= set(project["optional-dependencies"])
    assert _steps("USER") == ["search"]


@pytest.mark.thorough
def test_the_image_holds_the_graph_of_its_model(tmp_path: Path) -> None:
    [export] = [step for step in _steps("RUN") if "Embedder" in step]
    program, *words = shlex.split(export)
    assert program == "python"
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    subprocess.run([sys.executable, *words], check=True, env=environment(env), cwd=tmp_path)
    [graph] = (tmp_path / ".cache/sbert-search/graphs").iterdir()
    assert {path.name for path in graph.iterdir()} == {GRAPH, WEIGHTS, MANIFEST}


def test_the_unit_waits_longer_than_the_server_drains() -> None:
    unit = _unit()
    assert float(unit["TimeoutStopSec"]) > ServerLimits().drain_s + 5
    program, serve, *options = shlex.split(unit["ExecStart"])
    assert (Path(program).name, serve) == ("sbert-search", "serve")
    assert options[1:] == ["--host", "0.0.0.0", "--token-file", "%d/tokens"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """Where systemd is not installed, only the names of the settings are looked at."""
    text = (DEPLOY / "sbert-search.service").read_text(encoding="utf-8")
    program = shlex.split(_unit()["ExecStart"])[0]
    copy = tmp_path / "sbert-search.service"
    copy.write_text(text.replace(program, sys.executable), encoding="utf-8")
    assert {"NoNewPrivileges", "ProtectSystem", "StateDirectory", "DynamicUser"} <= _unit().keys()
    if analyze := shutil.which("systemd-analyze"):
        done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True)
        assert str(copy.name) not in done.stderr, done.stderr
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.network
def test_the_commands_of_the_image_run_in_a_new_environment(built: Path, tmp_path: Path) -> None:
    """pip takes the package from this checkout, and dependencies from this environment."""
    folder = tmp_path / "image"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    inherited = [path for path in sys.path if path.endswith("site-packages")]
    (site / "inherited.pth").write_text("\n".join(inherited))
    [install] = [step for step in _steps("RUN") if "sbert-search" in step]
    words = [word.replace("/src/sbert-search[", f"{ROOT}[") for word in shlex.split(install)]
    subprocess.run([python, *words[1:], "--no-deps"], check=True, cwd=tmp_path)
    shutil.copytree(built, tmp_path / "my.index")
    program, *words = _command_of_the_image()
    words = [word.replace("/srv", str(tmp_path)) for word in words]
    launcher = (str(folder / "bin" / program),)
    with live_server(
        *words[1:],
        cwd=tmp_path,
        env={"SBERT_SEARCH_TOKENS": READ, "PYTHONPATH": "", "HOME": str(tmp_path)},
        launcher=launcher,
    ) as live:
        assert _check_health(live) == 0
        answer = live.ask("GET", "/indexes", headers={"authorization": f"Bearer {READ}"})
        assert answer.json["indexes"][0]["documents"] == 3
        assert live.stop() == 0
