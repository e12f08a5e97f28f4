from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import QueryError
from sbert_search.index.index import Index
from tests.search.corpus import write_jsonl

N = 700  # documents; they are read in blocks of 256


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Documents d0 to d699 in two segments; those of i % 7 = 3 are deleted, d5 is replaced."""
    rows = [{"_id": f"d{i}", "text": f"word {i} " * 9, "i": i, "odd": i % 2 == 1} for i in range(N)]
    model = HashingEmbedder(8, max_len=8)  # three passages a document
    index = Index.build(
        write_jsonl(tmp_path / "a.jsonl", rows[:400]),
        out=tmp_path / "index",
        model=model,
        on_truncate="chunk",
    )
    index.add(write_jsonl(tmp_path / "b.jsonl", rows[400:]), model=model)
    index.delete([f"d{i}" for i in range(3, N, 7)])
    index.upsert(write_jsonl(tmp_path / "c.jsonl", [rows[5] | {"text": "other"}]), model=model)
    return index


def expected() -> list[str]:
    return [f"d{i}" for i in range(N) if i % 7 != 3 and i != 5] + ["d5"]


def test_documents_are_read_by_id(index: Index) -> None:
    document = index.get("d44")
    assert document is not None
    assert (document.doc_id, document.text) == ("d44", "word 44 " * 9)
    assert document.metadata == {"i": 44, "odd": False}
    assert index.get("d5") == list(index)[-1]
    assert index.get("d3") is None
    assert "d44" in index
    assert "d3" not in index
    assert 44 not in index
    assert object() not in index


@pytest.mark.parametrize("wrong", [4.5, True, b"d1", bytearray(b"1"), memoryview(b"1")])
def test_other_values_are_no_ids(index: Index, wrong: Any) -> None:
    for ask in (index.get, index.delete):
        with pytest.raises(QueryError, match="is not an id"):
            ask(wrong)


@pytest.mark.parametrize("several", [[], ["d1"], ["d1", "d2"]])
def test_one_document_is_read_by_one_id(index: Index, several: Any) -> None:
    with pytest.raises(QueryError, match="is not an id"):
        index.get(several)


def test_iteration_follows_the_order_of_addition(index: Index) -> None:
    assert [document.doc_id for document in index] == expected()
    odd = [document.doc_id for document in index.documents("odd = true AND i < 600")]
    assert odd == [d for d in expected() if int(d[1:]) % 2 and int(d[1:]) < 600]
    with pytest.raises(QueryError, match="Unknown column"):
        index.documents("age = 3")


@pytest.mark.thorough
@pytest.mark.parametrize("n", [1, 99, 300, 599, 600, 10_000])
@pytest.mark.parametrize("where", [None, "odd = true"])
def test_pages_give_every_document_once(index: Index, n: int, where: str | None) -> None:
    documents, after, pages = [], None, 0
    while pages == 0 or after is not None:
        page = index.scroll(n, after=after, where=where)
        assert len(page.documents) <= n
        documents += [document.doc_id for document in page.documents]
        after, pages = page.after, pages + 1
        if pages > 20:
            break
    all_ids = [d for d in expected() if where is None or int(d[1:]) % 2]
    assert documents == all_ids[: n * pages]
    assert pages == min(-(-len(all_ids) // n), 21)


def test_a_page_beyond_the_end_and_of_no_match_is_empty(index: Index) -> None:
    for page in (index.scroll(where="i < 0"), index.scroll(after=10**12)):
        assert (page.documents, page.after) == ([], None)
    with pytest.raises(QueryError, match="n is 0; it must be an integer of at least 1"):
        index.scroll(0)
    untyped: Any = index
    with pytest.raises(QueryError, match=r"n is 2\.5; it must be an integer of at least 1"):
        untyped.scroll(2.5)
    with pytest.raises(QueryError, match="after is 'x'; pass"):
        untyped.scroll(3, after="x")
    with pytest.raises(QueryError, match="seed is -1; it must be"):
        index.sample(3, seed=-1)
    with pytest.raises(QueryError, match="n is True"):
        index.scroll(True)
    with pytest.raises(QueryError, match="n is True"):
        index.sample(True)
    with pytest.raises(QueryError, match="after is True; pass"):
        index.scroll(3, after=True)
    with pytest.raises(QueryError, match="seed is True"):
        index.sample(3, seed=True)


def test_pages_survive_updates_between_them(index: Index, tmp_path: Path) -> None:
    first = index.scroll(300)
    index.delete([document.doc_id for document in first.documents[100:200]])
    new = write_jsonl(tmp_path / "d.jsonl", [{"_id": "new", "text": "new"}])
    index.add(new, model=HashingEmbedder(8, max_len=8))
    rest = index.scroll(10_000, after=first.after)
    assert [document.doc_id for document in rest.documents] == [*expected()[300:], "new"]


def test_a_sample_is_uniform_and_repeatable(index: Index) -> None:
    assert index.sample(5, seed=3) == index.sample(5, seed=3)
    assert index.sample(5, seed=3) != index.sample(5, seed=4)
    ids = [document.doc_id for document in index.sample(10_000)]
    assert sorted(ids) == sorted(expected())
    assert ids != expected()
    drawn = Counter(
        d.metadata["i"] for s in range(300) for d in index.sample(2, seed=s, where="i < 10")
    )
    assert set(drawn) == set(range(10)) - {3}
    assert min(drawn.values()) > 30  # 67 on average
