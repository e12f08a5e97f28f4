from __future__ import annotations

import json
import math

import pytest

from sbert_search.cli.console import emit, show_table, size_text


def test_a_json_line_has_null_where_json_has_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": math.nan, "b": {"c": (1.5, -math.inf)}, "d": [{"e": math.inf}], "f": "NaN"})
    line = '{"a": null, "b": {"c": [1.5, null]}, "d": [{"e": null}], "f": "NaN"}\n'
    assert capsys.readouterr().out == line
    emit({"b": {"c": (1.5, 2)}})
    assert json.loads(capsys.readouterr().out) == {"b": {"c": [1.5, 2]}}


def test_only_columns_of_numbers_are_aligned_right(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["number", "truth", "nothing"], [[1, True, None], [None, False, None]])
    heads, _, *rows = (line for line in capsys.readouterr().out.splitlines() if line.strip())
    right, *left = heads.index("number") + len("number") - 1, *map(heads.index, ("truth", "noth"))
    assert ["".join(row[at] for at in (right, *left)) for row in rows] == ["1y-", "-n-"]
    show_table(["long name"], [])
    assert "long name" in capsys.readouterr().out


def test_a_table_in_a_pipe_is_as_wide_as_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    columns = [f"long name {n}" for n in range(12)]
    show_table(columns, [["some words", 0.0687, "100.0"] * 4])
    heads, _, row = (line for line in capsys.readouterr().out.splitlines() if line.strip())
    assert heads.strip().startswith("long name 0 ")
    assert heads.rstrip().endswith("long name 11")
    assert row.split() == ["some", "words", "0.0687", "100.0"] * 4


def test_a_narrow_table_breaks_no_number_and_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show_table(
        ["document", "score", "part"], [["several words of a text", 0.0687, "100.0 [99.1]"]] * 2
    )
    words = capsys.readouterr().out.split()
    assert {"document", "score", "several", "words", "0.0687", "100.0", "[99.1]"} <= set(words)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1023.6, "1.0 KiB"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1_048_524, "1,023.9 KiB"),
        (1_048_575, "1.0 MiB"),
        (2**50, "1,024.0 TiB"),
    ],
)
def test_a_size_is_below_1024_of_its_unit(n_bytes: float, text: str) -> None:
    assert size_text(n_bytes) == text
