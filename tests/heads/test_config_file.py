"""Precisions of `sbert-search.toml` and the environment, for the commands of task heads."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.cli.main import run
from tests.cli.options.test_config_file import index, shown_rows

__all__ = ["index"]  # a fixture


def test_a_precision_for_all_commands_is_not_for_those_that_lack_it(
    index: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("sbert-search.toml")

    def value(*command: str) -> tuple[object, str]:
        assert run(["--show-config", *command, "--json"]) == 0
        return shown_rows(capsys)["precision"]

    file.write_text('precision = "fp16"\n')
    assert value("predict") == value("search") == ("fp16", "sbert-search.toml")
    assert value("pretrain") == value("train", "tag") == ("auto", "default")
    file.write_text('precision = "int8"\n')
    assert value("search") == value("eval", "sts") == ("int8", "sbert-search.toml")
    assert value("predict") == ("auto", "default")
    assert value("eval", "qa") == ("fp32", "default")
    monkeypatch.setenv("SBERT_SEARCH_PRECISION", "fastest")
    assert value("predict") == ("auto", "default")
    assert value("search") == ("fastest", "environment, SBERT_SEARCH_PRECISION")
    monkeypatch.setenv("SBERT_SEARCH_PRECISION", "int9")
    assert run(["--show-config", "predict"]) == 2
    monkeypatch.delenv("SBERT_SEARCH_PRECISION")
    for text in ('[predict]\nprecision = "int8"', '\nprecision = "int9"'):
        file.write_text(text)
        assert run(["--show-config", "predict"]) == 2
        assert "sbert-search.toml:2: precision: 'int" in capsys.readouterr().err
