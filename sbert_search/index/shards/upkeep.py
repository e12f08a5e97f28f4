"""Tuning a sharded index: one spec for all shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sbert_search.index.settings import IndexSpec
from sbert_search.index.shards.opening import joined
from sbert_search.index.shards.writer import ShardedWriter
from sbert_search.index.snapshot import Snapshot
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.tuning.measuring import Search
from sbert_search.index.tuning.sweep import Candidate
from sbert_search.index.tuning.trials import Built, FullTrials, without_faiss
from sbert_search.index.upkeep import compaction
from sbert_search.index.writer import IndexWriter


def commit_best(
    writer: IndexWriter, final: FullTrials, chosen: Sequence[Candidate], memory_bytes: int | None
) -> None:
    """Build the finalists of a tuning in every shard, and commit the best in all of them.

    Their search settings are chosen by searches of all shards together.
    """
    assert isinstance(writer, ShardedWriter)
    with writer.together() as shards:
        build = partial(_built, writer.snapshot, shards, memory_bytes)
        best, tuning = final.decide(chosen, build)
        for shard, state in zip(shards, best.manifests, strict=True):
            settings = replace(state.settings, spec=tuning.verified.spec)
            new = replace(state.with_settings(settings), tuning=tuning)
            shard.rewrite(partial(_state, new))


def _built(
    snapshot: Snapshot,
    writers: Sequence[IndexWriter],
    memory_bytes: int | None,
    spec: IndexSpec,
) -> Built:
    """Build the FAISS files of a spec in every shard, and return how to search them."""
    for writer in writers:
        writer.rewrite(partial(_with_ann, writer, spec, memory_bytes, len(writers)))
    states = [writer.snapshot for writer in writers]

    assert snapshot.shards is not None
    opened = joined(snapshot.folder, snapshot.shards, states)

    def search_by(spec: IndexSpec) -> Search:
        return opened.with_spec(spec).search

    return Built(tuple(state.manifest for state in states), search_by)


def _with_ann(
    writer: IndexWriter, spec: IndexSpec, memory_bytes: int | None, n_shards: int, work: Transaction
) -> Manifest:
    new = without_faiss(writer.snapshot.manifest, spec)
    return compaction.with_ann(
        work, writer.snapshot, new, memory_bytes=memory_bytes, n_shards=n_shards
    )


def _state(manifest: Manifest, work: Transaction) -> Manifest:
    """Return ``manifest``, so that `IndexWriter.rewrite` commits it; no file is written."""
    return manifest
