"""The story of the README with the client of OpenAI itself."""

from __future__ import annotations

from pathlib import Path

import openai

from tests.chain.test_story import run_story


def test_the_commands_of_the_readme_tell_the_story_to_the_real_client(tmp_path: Path) -> None:
    assert openai.__version__
    run_story(tmp_path)
