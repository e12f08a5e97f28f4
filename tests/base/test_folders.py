"""Folders held open: what is below them is reached without links, wherever their path leads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbert_search.base import files
from sbert_search.base.folders import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "f" / "seg").mkdir(parents=True)
    return Folder.open(tmp_path / "f")


def test_what_is_written_follows_the_folder_and_not_the_path(
    folder: Folder, tmp_path: Path
) -> None:
    (tmp_path / "f").rename(tmp_path / "moved")
    (tmp_path / "f" / "seg").mkdir(parents=True)
    assert not folder.is_at_its_path()
    files.write_new(folder / "seg/a", b"1")
    files.replace_file(folder / "b", b"2")
    files.disk.link(folder / "seg/a", folder / "c")
    files.disk.unlink(folder / "seg/a")
    assert sorted(path.name for path in (tmp_path / "moved").rglob("*")) == ["b", "c", "seg"]
    assert [path.name for path in (tmp_path / "f").rglob("*")] == ["seg"]


def test_a_relative_path_means_where_it_led_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "f").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    folder = Folder.open("f")
    monkeypatch.chdir(tmp_path / "there")
    assert folder.path == tmp_path / "here" / "f"
    assert folder.is_at_its_path()


def test_a_linked_sub_folder_is_refused_with_its_path(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "f" / "ann").symlink_to(tmp_path / "other")
    for name in ("ann/000001.faiss", "ann/"):
        with pytest.raises(OSError, match=f"where a folder should be: '{tmp_path}/f/ann"):
            folder.stat(name)
    with pytest.raises(OSError, match="where a folder should be"):
        files.write_new(folder / "ann/000001.faiss", b"1")
    assert list((tmp_path / "other").iterdir()) == []


def test_another_sub_folder_than_before_is_refused(folder: Folder, tmp_path: Path) -> None:
    files.write_new(folder / "seg/a", b"1")
    (tmp_path / "f" / "seg").rename(tmp_path / "seg")
    (tmp_path / "f" / "seg").mkdir()
    assert folder.moved_folders() == ["seg"]
    with pytest.raises(OSError, match="Not the same folder as before"):
        files.write_new(folder / "seg/b", b"1")
    (tmp_path / "f" / "seg").rmdir()
    (tmp_path / "seg").rename(tmp_path / "f" / "seg")
    assert folder.moved_folders() == []
    files.write_new(folder / "seg/b", b"1")


def test_a_listing_tells_files_from_links_and_folders(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "f" / "a").write_bytes(b"")
    (tmp_path / "f" / "link").symlink_to(tmp_path / "f" / "a")
    assert folder.listing() == {"a": True, "link": False, "seg": False}
    assert folder.listing() == {"a": True, "link": False, "seg": False}  # read to its end before
    assert folder.listing("seg") == {}


def test_a_kept_sub_folder_is_opened_again_after_its_context(
    folder: Folder, tmp_path: Path
) -> None:
    files.write_new(folder / "seg/a", b"1")
    with folder.kept_open(["seg"]) as opened:
        pass
    another = os.open(tmp_path, os.O_RDONLY)  # gets the number of the descriptor of seg
    try:
        assert bytes(files.map_file(opened / "seg/a")) == b"1"
    finally:
        os.close(another)


def test_one_descriptor_is_held_and_given_back(tmp_path: Path) -> None:
    held = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    (tmp_path / "seg").mkdir()
    before = len(os.listdir(held))
    folder = Folder.open(tmp_path)
    files.write_new(folder / "seg/a", b"1")
    with folder.kept_open(["seg"]) as opened:
        assert bytes(files.map_file(opened / "seg/a")) == b"1"
    assert len(os.listdir(held)) == before + 1
    del folder, opened
    assert len(os.listdir(held)) == before
