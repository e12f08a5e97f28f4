"""Zstandard frames, whole and cut."""

from __future__ import annotations

import io

import pytest

from sbert_search.text.formats.compressed import PART_BYTES, ZstdStream
from tests.text.accounting import zstd

TEXT = bytes(range(256)) * 40


def test_frames_are_joined() -> None:
    stream = io.BufferedReader(ZstdStream(io.BytesIO(zstd(TEXT) + zstd(b"more"))))
    assert stream.read() == TEXT + b"more"


def test_only_a_small_part_before_a_cut_is_lost() -> None:
    stream = ZstdStream(io.BytesIO(zstd(TEXT) + zstd(TEXT)[:-8]))
    found = b""

    def read_all() -> None:
        nonlocal found
        while part := stream.read(1 << 16):
            found += part

    with pytest.raises(OSError, match=r"[Zz]std|[Tt]runcated|decompress"):
        read_all()
    assert len(found) >= len(TEXT) - PART_BYTES
    assert (TEXT + TEXT).startswith(found)


def test_a_cut_anywhere_is_noticed() -> None:
    """Also in the last byte; a cut between two frames leaves a whole file."""
    frame = zstd(TEXT)
    whole = frame + frame
    for end in {*range(1, len(whole), 7), *range(len(whole) - 5, len(whole))} - {len(frame)}:
        with pytest.raises(OSError, match=r"[Zz]std|[Tt]runcated|decompress"):
            io.BufferedReader(ZstdStream(io.BytesIO(whole[:end]))).read()
