"""Every planted fault still fits the code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sbert_search.wings import installed
from tests.plant_faults import PACKAGE, ROOT, Fault, read_faults
from tests.without_wing import PAGES


def test_every_planted_fault_fits_one_place_and_changes_the_code() -> None:
    faults = read_faults()
    assert len({fault.name for fault in faults}) == len(faults) == 40
    for fault in faults:
        if fault.room in PAGES.keys() - installed():
            continue  # its code is absent
        path, text = fault.planted(ROOT)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(path.read_text())), fault.name


@pytest.mark.parametrize(("text", "n_places"), [("b = 1\n", 0), ("a = 1\na\t= 1\n", 2)])
def test_a_fault_that_does_not_fit_one_place_is_refused(
    tmp_path: Path, text: str, n_places: int
) -> None:
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "a.py").write_text(text)
    fault = Fault(name="wrong", room="room", old="a = 1", new="a = 2", why="")
    with pytest.raises(ValueError, match=f"wrong: {n_places} places"):
        fault.planted(tmp_path)
