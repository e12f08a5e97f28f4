"""Nothing that a document or a file name holds commands a terminal."""

from __future__ import annotations

import errno
import io
import sys

import pytest

from sbert_search.base import progress
from sbert_search.base.progress import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("café 日本\n\tline", "café 日本\n\tline"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("\x9b2J\x7f\r\a\b", r"\x9b2J\x7f\r\x07\x08"),
        ("\udcff.txt", r"\udcff.txt"),
    ],
)
def test_control_characters_are_escapes(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_every_control_character_is_hidden() -> None:
    for code in [*range(32), *range(127, 160), *range(0xD800, 0xE000)]:
        assert visible(chr(code)).isascii()
        assert (chr(code) in visible(chr(code))) == (chr(code) in "\t\n")


class Full(io.StringIO):
    """A stream that takes nothing, as a file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_note_that_cannot_be_written_is_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.note("a \x1b[31mnote")
    assert capsys.readouterr().err == "a \\x1b[31mnote\n"
    monkeypatch.setattr(sys, "stderr", Full())
    progress.note("a note")
    monkeypatch.setattr(sys, "stderr", None)
    progress.note("a note")
    with progress.progress("Reading", 3) as advance:
        advance(1)
