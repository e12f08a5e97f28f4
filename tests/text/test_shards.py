from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from sbert_search.base.files import Disk, use_disk
from sbert_search.errors import CorpusError
from sbert_search.text.tokens.shard_writing import ShardWriter
from sbert_search.text.tokens.shards import NAME, TokenShards

BATCHES: list[list[list[list[int]]]] = [
    [[[1, 2, 3], [4]], [[5, 6]]],
    [[[7], [], [8, 9, 10]], [], [[]]],
    [[[11, 12]]],
    [[[13], [14, 15]], [[16, 17, 18]]],
]
TOKENS = list(range(1, 19))


def write(folder: Path, vocab_size: int = 100, origin: str = "test") -> TokenShards:
    """Write the batches, four rows each, going on where an earlier call stopped."""
    identity = {"origin": origin}
    with ShardWriter(folder, vocab_size=vocab_size, identity=identity, shard_tokens=5) as writer:
        assert writer.rows % 4 == 0
        for number in range(writer.rows // 4, len(BATCHES)):
            writer.add(BATCHES[number], 4 * number + 4)
        if not writer.finished:
            writer.finish(4 * len(BATCHES))
    return TokenShards(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


def test_documents_and_sentences_come_back(tmp_path: Path) -> None:
    shards = write(tmp_path / "s")
    assert [shard.n_tokens for shard in shards.manifest.shards] == [6, 6, 6]
    assert shards.tokens(0, shards.n_tokens).tolist() == TOKENS
    assert shards.sentence_starts.tolist() == [0, 3, 4, 6, 7, 10, 12, 13, 15, 18]
    assert shards.document_starts.tolist() == [0, 2, 3, 5, 6, 8, 9]
    assert shards.manifest.rows == 16
    shards.verify()


def test_any_stretch_is_read_over_the_ends_of_shards(tmp_path: Path) -> None:
    shards = write(tmp_path / "s")
    for start in range(18):
        for end in range(start + 1, 19):
            assert shards.tokens(start, end).tolist() == TOKENS[start:end]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "u2"), (65_537, "u4")])
def test_tokens_take_two_bytes_where_that_is_enough(
    tmp_path: Path, vocab_size: int, dtype: str
) -> None:
    shards = write(tmp_path / "s", vocab_size)
    assert shards.manifest.dtype == np.dtype(dtype)
    stored = np.load(tmp_path / "s" / "000000.tokens.npy", mmap_mode="r", allow_pickle=False)
    assert stored.dtype == np.dtype(dtype)
    assert stored.tolist() == TOKENS[:6]


class Failing(Disk):
    """A disk that fails at its n-th step and ever after."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __getattribute__(self, name: str) -> object:
        if name in ("open_new", "write", "fsync", "fsync_folder", "make_folder", "replace"):
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")
        return super().__getattribute__(name)


def test_work_stopped_at_any_step_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    stopped = 0
    for step in range(1000):
        folder = tmp_path / str(step)
        try:
            with use_disk(Failing(step)):
                write(folder)
        except OSError:
            stopped += 1
        write(folder)
        assert contents(folder) == contents(tmp_path / "whole")
        if stopped == step:  # this step was beyond the last
            break
    assert stopped > 40


def test_finished_shards_are_not_written_again(tmp_path: Path) -> None:
    write(tmp_path / "s")
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*.npy")}
    write(tmp_path / "s")
    assert before == {path.name: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*.npy")}


def test_shards_of_another_origin_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "s")
    with pytest.raises(CorpusError, match="another origin"):
        write(tmp_path / "s", origin="other")
    with pytest.raises(CorpusError, match="another origin"):
        write(tmp_path / "s", vocab_size=99)


def test_a_refused_writer_releases_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "s")
    refused = ShardWriter(tmp_path / "s", vocab_size=99, identity={})
    with pytest.raises(CorpusError, match="another origin"):
        refused.__enter__()
    write(tmp_path / "s")  # while the refused one exists


def test_only_one_process_writes(tmp_path: Path) -> None:
    with (
        ShardWriter(tmp_path / "s", vocab_size=9, identity={}),
        pytest.raises(CorpusError, match="Another process"),
        ShardWriter(tmp_path / "s", vocab_size=9, identity={}),
    ):
        pass


def test_unfinished_shards_and_no_shards_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no token shards"):
        TokenShards(tmp_path)
    with ShardWriter(tmp_path / "s", vocab_size=100, identity={}, shard_tokens=1) as writer:
        writer.add(BATCHES[0], 4)
    with pytest.raises(CorpusError, match="not finished"):
        TokenShards(tmp_path / "s")


def test_a_source_without_tokens_is_named(tmp_path: Path) -> None:
    with (
        ShardWriter(tmp_path / "s", vocab_size=100, identity={}) as writer,
        pytest.raises(CorpusError, match="holds no text with a token"),
    ):
        writer.finish(3)


@pytest.mark.parametrize("token", [-1, 100])
def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path, token: int) -> None:
    with (
        ShardWriter(tmp_path / "s", vocab_size=100, identity={}) as writer,
        pytest.raises(CorpusError, match=f"Token {token} is outside"),
    ):
        writer.add([[[1, token, 2]]], 1)


def test_damage_is_named(tmp_path: Path) -> None:
    shards = write(tmp_path / "s")
    file = tmp_path / "s" / "000001.tokens.npy"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorpusError, match=r"000001\.tokens\.npy is damaged"):
        shards.verify()
    file.write_bytes(data[:-1])
    with pytest.raises(CorpusError, match="bytes of data"):
        TokenShards(tmp_path / "s")
    file.unlink()
    with pytest.raises(CorpusError, match="can be read"):
        TokenShards(tmp_path / "s")
    (tmp_path / "s" / NAME).write_text('{"format": "other"}')
    with pytest.raises(CorpusError, match="cannot be used as the manifest"):
        TokenShards(tmp_path / "s")


def test_want_of_memory_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s")

    def map_nothing(path: Path) -> memoryview:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("sbert_search.base.files.map_file", map_nothing)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        TokenShards(tmp_path / "s")
