from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.cache import CachedEmbedder, VectorCache, evict
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError

TEXTS = ["one text", "another text", "one text", "the far side of the moon"]


class Counted(HashingEmbedder):
    """Counts the texts that it embeds."""

    def __init__(self, dim: int = 384) -> None:
        super().__init__(dim)
        self.embedded: list[str] = []

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        self.embedded += tokens.texts
        return super().encode_tokens(tokens)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sbert-search" / "vectors"


def vectors_of(texts: Sequence[str], embedder: HashingEmbedder) -> Vectors:
    with closing(CachedEmbedder(embedder)) as wrapped:
        return wrapped.encode_document(texts)


def test_a_second_process_embeds_what_is_new_alone() -> None:
    expected = HashingEmbedder().encode(TEXTS)
    first, second = Counted(), Counted()
    assert np.array_equal(vectors_of(TEXTS, first), expected)
    with closing(CachedEmbedder(second)) as wrapped:
        assert np.array_equal(wrapped.encode_query(TEXTS), expected)  # no prompts: the same ids
        wrapped.encode(["something new", *TEXTS])
        assert (wrapped.computed, wrapped.cached) == (1, 8)
    assert second.embedded == ["something new"]


def test_models_do_not_share_vectors() -> None:
    vectors_of(TEXTS, Counted(64))
    other = Counted(32)
    assert vectors_of(TEXTS, other).shape == (4, 32)
    assert other.embedded


def test_a_damaged_block_is_embedded_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors_of(TEXTS, Counted())
    (block,) = home.glob("*/*.vectors")
    data = bytearray(block.read_bytes())
    data[-1] ^= 1
    block.write_bytes(data)
    again = Counted()
    assert np.array_equal(vectors_of(TEXTS, again), HashingEmbedder().encode(TEXTS))
    assert len(again.embedded) == 4
    assert "is damaged; its texts are embedded again" in capsys.readouterr().err
    assert vectors_of(TEXTS, unused := Counted()).shape == (4, 384)
    assert unused.embedded == []


def test_a_block_of_another_user_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors_of(TEXTS, Counted())
    monkeypatch.setattr("os.utime", refuse)
    assert vectors_of(TEXTS, unused := Counted()).shape == (4, 384)
    assert unused.embedded == []


def refuse(path: Path) -> None:
    raise PermissionError(path)


def test_work_before_an_error_is_kept(home: Path) -> None:
    with closing(CachedEmbedder(Counted())) as wrapped:
        wrapped.encode(TEXTS)
        with pytest.raises(ConfigError, match="no prompt"):
            wrapped.tokenize(TEXTS, prompt_name="missing")
    assert vectors_of(TEXTS, after := Counted()).shape == (4, 384)
    assert after.embedded == []


def test_what_was_not_used_for_longest_goes_first(home: Path) -> None:
    for n, dim in enumerate((8, 16, 24)):
        folder = VectorCache(home / str(dim), dim)
        folder.put(bytes([n]) * 16, np.ones(dim, np.float32))
        folder.flush()
        (block,) = (home / str(dim)).glob("*.vectors")
        block.touch()
    sizes = {path.parent.name: path.stat().st_size for path in home.glob("*/*.vectors")}
    evict(home, sizes["16"] + sizes["24"])
    assert {path.parent.name for path in home.glob("*/*.vectors")} == {"16", "24"}
    assert len(VectorCache(home / "24", 24)) == 1
    CachedEmbedder(HashingEmbedder(), max_bytes=0)
    assert not list(home.glob("*/*.vectors"))
