"""The command `index tune` for a sharded index, which is a folder of ordinary indexes, its shards.

All shards get the same spec: a FAISS index type with its search settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from sbert_search.index.maintenance import compaction
from sbert_search.index.spec import IndexSpec
from sbert_search.index.storage.manifest import Manifest
from sbert_search.index.storage.transaction import Transaction
from sbert_search.index.tuning.choice import Candidate
from sbert_search.index.tuning.full_trials import Built, FullTrials, bare
from sbert_search.index.tuning.recall import Floats, Search
from sbert_search.index.tuning.settings import TuneSettings
from sbert_search.index.tuning.tune import TuneReport, tune
from sbert_search.index.writer import IndexWriter
from sbert_search.shards.snapshot import ShardedSnapshot
from sbert_search.shards.store import ShardedStore
from sbert_search.shards.writer import ShardedWriter


def tune_shards(
    store: ShardedStore,
    settings: TuneSettings,
    queries: Floats | None = None,
    *,
    origin: str = "documents",
    dry_run: bool = False,
) -> TuneReport:
    """Find the fastest spec that reaches the recall of ``settings``, and commit it in all shards.

    FAISS index types are compared on a sample of the rows of all shards. The best ones, the
    finalists, are built in every shard. Their search settings are chosen by searches of all shards
    together. Arguments and errors are those of `index.tuning.tune.tune`.
    """
    return tune(store, settings, queries, origin=origin, dry_run=dry_run, commit_best=_commit_best)


def _commit_best(
    writer: IndexWriter, final: FullTrials, chosen: Sequence[Candidate], memory_bytes: int | None
) -> None:
    """Build the finalists in all shards, and commit the best one in all shards at once."""
    assert isinstance(writer, ShardedWriter)
    with writer.together() as shards:
        build = partial(_built, writer.snapshot, shards, memory_bytes)
        best, tuning = final.decide(chosen, build)
        for shard, state in zip(shards, best.manifests, strict=True):
            settings = replace(state.settings, spec=tuning.verified.spec)
            shard.rewrite(partial(_state, replace(state, settings=settings, tuning=tuning)))


def _built(
    snapshot: ShardedSnapshot,
    writers: Sequence[IndexWriter],
    memory_bytes: int | None,
    spec: IndexSpec,
) -> Built:
    """Build the FAISS files of a spec in every shard, and return how to search them."""
    for writer in writers:
        writer.rewrite(partial(_with_ann, writer, spec, memory_bytes, len(writers)))
    states = [writer.snapshot for writer in writers]

    def search_by(spec: IndexSpec) -> Search:
        return snapshot.with_states([state.with_spec(spec) for state in states]).search

    return Built(tuple(state.manifest for state in states), search_by)


def _with_ann(
    writer: IndexWriter, spec: IndexSpec, memory_bytes: int | None, n_shards: int, work: Transaction
) -> Manifest:
    new = bare(writer.snapshot.manifest, spec)
    return compaction.with_ann(
        work, writer.snapshot, new, memory_bytes=memory_bytes, n_shards=n_shards
    )


def _state(manifest: Manifest, work: Transaction) -> Manifest:
    """Return ``manifest``, so that `IndexWriter.rewrite` commits it; no file is written."""
    return manifest
