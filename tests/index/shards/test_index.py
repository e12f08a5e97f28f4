"""A sharded index is used like any other, from Python and from the command line."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, NotAnIndex
from sbert_search.index.index import Index
from sbert_search.records import Hit
from sbert_search.search.engine import SearchEngine
from sbert_search.search.options import SearchMode, SearchOptions
from tests.cli.process import Done, sbert_search

WORDS = [
    "mill",
    "river",
    "wheel",
    "stone",
    "flour",
    "miller",
    "bread",
    "harvest",
    "autumn",
    "storm",
]
QUERIES = ["mill river", "the miller grinds flour", "+bread -storm", '"stone wheel"', "harvst mil"]


class Reversing:
    """A reranker that prefers short passages."""

    def predict(self, pairs: list[tuple[str, str]], /) -> list[float]:
        """Score pairs by length."""
        return [-float(len(text)) for _, text in pairs]


def some_rows(n_rows: int) -> list[dict[str, object]]:
    rng = random.Random(3)
    return [
        {
            "_id": f"d{n}",
            "title": rng.choice(["", *WORDS]),
            "text": " ".join(rng.choices(WORDS, k=rng.randint(1, 40))) + ".",
            "year": 1990 + rng.randrange(30),
        }
        for n in range(n_rows)
    ]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchEngine, SearchEngine]:
    """Build one index and four shards of the same documents, some with several passages."""
    folder, rows, model = tmp_path_factory.mktemp("both"), some_rows(600), HashingEmbedder(24)
    Index.build(rows, out=folder / "one", model=model, chunk_tokens=12)
    Index.build(rows, out=folder / "four", model=model, n_shards=4, chunk_tokens=12)
    return SearchEngine(folder / "one", model), SearchEngine(folder / "four", model)


def shown(hits: Sequence[Hit]) -> list[tuple[object, ...]]:
    """Return all of the hits but their row numbers."""
    return [(h.doc_id, h.score, h.passage, h.best_sentence, h.matched_words) for h in hits]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(),
        SearchOptions(where="year >= 2010"),
        SearchOptions(group=False),
        SearchOptions(group_by="year"),
        SearchOptions(diversity=0.4),
        SearchOptions(fuzzy=1),
        SearchOptions(offset=5),
    ],
    ids=["plain", "filter", "passages", "groups", "diversity", "fuzzy", "page"],
)
def test_answers_equal_those_of_one_index_to_the_bit(
    both: tuple[SearchEngine, SearchEngine], mode: SearchMode, options: SearchOptions
) -> None:
    n_found = 0
    for query in QUERIES:
        chosen = replace(options, k=20, mode=mode)
        found = [engine.search(query, options=chosen, highlight=True) for engine in both]
        assert shown(found[0]) == shown(found[1])
        n_found += len(found[0])
    assert n_found > 40


def test_all_other_questions_have_the_same_answers(
    both: tuple[SearchEngine, SearchEngine],
) -> None:
    one, four = both
    assert list(one.index) == list(four.index)
    assert shown(one.similar(["d3", "d9"], 10)) == shown(four.similar(["d3", "d9"], 10))
    assert one.facets("mill", "year") == four.facets("mill", "year")
    assert one.suggest("harvst bred") == four.suggest("harvst bred")
    assert one.index.get("d77") == four.index.get("d77")
    pages = [engine.index.scroll(50, where="year < 2000").documents for engine in both]
    assert pages[0] == pages[1]
    assert one.index.sample(20) == four.index.sample(20)
    reranked = [SearchEngine(e.index, e.embedder, Reversing()).search("mill", 20) for e in both]
    assert shown(reranked[0]) == shown(reranked[1])
    infos = [engine.index.info() for engine in both]
    for name in ("documents", "passages", "columns", "model", "lexical", "built", "finished"):
        assert getattr(infos[0], name) == getattr(infos[1], name)


def test_both_kinds_are_opened(both: tuple[SearchEngine, SearchEngine], tmp_path: Path) -> None:
    one, four = both
    for engine, n_shards in ((one, 1), (four, 4)):
        opened = Index.open(engine.index.path)
        assert (opened.state.is_sharded, opened.n_shards) == (n_shards > 1, n_shards)
    with pytest.raises(NotAnIndex, match="no such folder"):
        Index.open(tmp_path / "absent")


def test_an_empty_sharded_index_takes_documents_and_a_backup_is_one_too(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", model=HashingEmbedder(8), n_shards=3)
    index.add(some_rows(20), model=HashingEmbedder(8))
    index.backup(tmp_path / "copy")
    assert index.delete(["d1", "d2"]) == 2
    index.compact()
    assert (len(index), len(Index.open(tmp_path / "copy"))) == (18, 20)
    for n_shards in (0, "3", 2.0):
        with pytest.raises(ConfigError, match=f"number of shards is {n_shards!r}; it must be an"):
            Index.build(some_rows(2), model=HashingEmbedder(8), n_shards=n_shards)  # type: ignore[arg-type]


def test_documents_of_all_shards_are_read_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", model=HashingEmbedder(8), n_shards=3)
    rows = some_rows(20)
    index.add(rows, model=HashingEmbedder(8))
    live = index.state.live_rows()
    assert live.tolist() == sorted(live)
    assert index.state.doc_ids(live) == [row["_id"] for row in rows]


def test_compaction_is_advised_only_where_it_helps(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "i", model=HashingEmbedder(8), n_shards=20)
    index.add(some_rows(200), model=HashingEmbedder(8))
    index.compact()
    assert (index.info().segments, index.info().advice) == (20, "")
    assert index.drift().actions == ()
    assert index.state.is_sharded
    in_first = [d.doc_id for d in index.state.parts[3].iter_documents()]
    with index.store.writer() as writer:  # `Index.delete` would merge at its end
        writer.delete(in_first[1:])
    n, dead = len(in_first), len(in_first) - 1
    assert index.drift().actions == (f"`index compact`: {dead} of {n} rows in shard 3 are dead",)
    index.compact()
    assert index.drift().actions == ()


def run(*arguments: object) -> Done:
    """Run a command in a process of its own."""
    return sbert_search(*arguments, env={"SBERT_SEARCH_MODEL": "hashing"})


def test_commands_work_on_a_sharded_folder(tmp_path: Path) -> None:
    source, more, path = tmp_path / "docs.jsonl", tmp_path / "more.jsonl", tmp_path / "i"
    source.write_text("".join(json.dumps(row) + "\n" for row in some_rows(60)))
    more.write_text(json.dumps({"_id": "d5", "text": "A new mill."}) + "\n")
    build = ("index", "build", source, "--out", path)
    built = run(*build, "--shards", 3, "--json")
    assert (built.code, built.records[0]["indexed"]) == (0, 60)
    refused = run(*build)
    assert (refused.code, "with --shards" in refused.err) == (1, True)
    assert len(run("search", path, "mill", "-k", 3, "--json").records) == 3
    assert run("index", "upsert", path, more, "--json").records[0]["replaced"] == 1
    assert run("index", "delete", path, "--ids", "d1,d2", "--json").records[0]["deleted"] == 2
    for name in ("check", "repair", "compact"):
        assert run("index", name, path).code == 0
    copied = run("index", "backup", path, tmp_path / "copy", "--json")
    assert copied.records[0]["documents"] == 58
    (info,) = run("index", "info", tmp_path / "copy", "--json").records
    assert (info["documents"], info["shards"]) == (58, 3)
    assert "\nshards      3\n" in run("index", "info", path).out
