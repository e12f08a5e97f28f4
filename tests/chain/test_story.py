"""The story of the README: pairs in, a better model, judged, served, called by OpenAI's client."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.process import ROOT, environment
from tests.docs.blocks import Block, agrees, blocks_of, commands_of
from tests.serve.live import live_server

PAIRS = "examples/support.csv"
STAND_IN = ROOT / "tests" / "serve" / "stand_in"
GAIN = re.compile(r"before ([\d.]+), after ([\d.]+) \(p = ([\d.]+), \d+ held-out queries\)")


def story() -> list[Block]:
    """Return the blocks of the README from the training on the pairs to the call of the client."""
    blocks = blocks_of(ROOT / "README.md")
    first = next(place for place, block in enumerate(blocks) if PAIRS in block.body)
    last = next(place for place, block in enumerate(blocks) if "openai" in block.title)
    return blocks[first : last + 1]


def with_client() -> dict[str, str]:
    """Return the environment of a program that imports the client, or what stands for it."""
    paths = [str(ROOT)] + [str(STAND_IN)] * (find_spec("openai") is None)
    return environment({"PYTHONPATH": ":".join(paths)})


def run_story(folder: Path) -> None:
    """Run the story in a folder that holds nothing but the pairs."""
    (folder / PAIRS).parent.mkdir()
    shutil.copy(ROOT / PAIRS, folder / PAIRS)
    *blocks, client = story()
    commands = [each for block in blocks for each in commands_of(block)]
    assert len(commands) + len(["the installation", "the client"]) <= 6
    [serve] = [command for command, _ in commands if command.startswith("sbert-search serve ")]
    shim = f'sbert-search() {{ "{sys.executable}" -m sbert_search "$@"; }}\n'
    for command, shown in commands:
        if command == serve or "pip install" in command:
            continue
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {shim}{command}"],
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert agrees(shown, done.stdout), done.stdout
        if found := GAIN.search(done.stdout):
            before, after, p = map(float, found.groups())
            assert (after - before > 0.3, p < 0.01) == (True, True)
    with live_server(*serve.split()[2:], cwd=folder) as server:
        program = client.body.replace("http://localhost:8080", server.url)
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=with_client(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        [shown] = re.findall(r"# about (.*) and (.*)$", program, re.MULTILINE)
        # trained and computed in float32 or bfloat16, as the machine does it faster
        assert json.loads(done.stdout) == pytest.approx([*map(float, shown)], abs=0.07)
        assert server.stop() == 0


@pytest.mark.thorough
def test_the_commands_of_the_readme_tell_the_story(tmp_path: Path) -> None:
    run_story(tmp_path)


def test_what_stands_for_the_client_sends_its_request() -> None:
    recorded = json.loads((ROOT / "tests/serve/routes/clients.json").read_text())
    [body] = [each["body"] for each in recorded if each["client"].endswith("embeddings.create")]
    sent = (STAND_IN / "openai.py").read_text()
    assert all(f'"{field}"' in sent for field in body)
    assert body["encoding_format"] == "base64"
