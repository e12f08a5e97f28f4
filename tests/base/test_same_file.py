"""What is read is recognised under each of its names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbert_search.base.folders import first_same_file, require_apart, require_possible_output
from sbert_search.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs" / "a.parquet"
    path.write_bytes(b"data")
    return path


def names_of(file: Path) -> dict[str, Path]:
    """Give a file further names."""
    above = file.parent.parent
    link, hard, folder = above / "link.parquet", above / "hard.parquet", above / "folder"
    link.symlink_to(file)
    os.link(file, hard)
    folder.symlink_to(file.parent)
    return {
        "itself": file,
        "spelling": above / "docs" / ".." / "docs" / "." / file.name,
        "relative": Path(os.path.relpath(file)),
        "link": link,
        "hard link": hard,
        "linked folder": folder / file.name,
    }


def test_a_file_is_refused_under_every_name_and_others_are_not(file: Path) -> None:
    for name in names_of(file).values():
        assert first_same_file(name, [file.with_name("absent"), file]) == file
        with pytest.raises(ConfigError, match=r"^out would overwrite .*parquet.*, which is read"):
            require_apart(name, [file], "--out")
    other = file.with_name("b.parquet")
    other.write_bytes(b"data")
    for output in (other, file.with_name("absent"), file.parent.parent / "a.parquet"):
        require_apart(output, [file])
    assert first_same_file(file.with_name("absent"), [file.with_name("absent")]) is None


def test_the_file_that_is_written_first_is_no_input_either(file: Path) -> None:
    temporary = file.rename(file.with_name("run.trec.tmp"))
    with pytest.raises(ConfigError, match=r"overwrite .*run\.trec\.tmp, which is read"):
        require_apart(file.with_name("run.trec"), [temporary])


def test_a_folder_that_is_read_takes_no_output(file: Path) -> None:
    folder = file.parent
    for inside in (folder / "new", folder / ".." / "docs" / "deep" / "new"):
        with pytest.raises(ConfigError, match=r"lies in .*docs, which is read"):
            require_apart(inside, [folder])
    require_apart(folder / ".." / "new", [folder])
    require_apart(folder.with_name("docs2") / "new", [folder])
    require_apart(Path("."), [file])


def test_a_place_where_no_file_can_be_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--svg: .*docs is a folder\. Name a file"):
        require_possible_output(file.parent, "--svg")
    with pytest.raises(ConfigError, match=r"--svg: .*absent is not a folder\. Create it first"):
        require_possible_output(file.parent / "absent" / "x.svg", "--svg")
    require_possible_output(file)
