"""A map as rows of documents: coordinates, cluster, distance to neighbours, near-duplicates."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from sbert_search.lab.map.record import CorpusMap

NAMED = 3  # number of words in the name of a cluster


def cluster_names(drawn: CorpusMap) -> list[str]:
    """Return a name for each cluster: its words with the largest weights."""
    return [", ".join(words[:NAMED]) for words in drawn.words]


def to_table(drawn: CorpusMap) -> pa.Table:
    """Make a table with a row for each document."""
    names = pa.array(cluster_names(drawn))
    return pa.table(
        {
            "doc_id": drawn.doc_ids,
            "title": drawn.titles,
            "x": drawn.layout[:, 0],
            "y": drawn.layout[:, 1],
            "pca_x": drawn.axes[:, 0],
            "pca_y": drawn.axes[:, 1],
            "cluster": drawn.cluster,
            "cluster_name": names.take(pa.array(drawn.cluster)),
            "distance": drawn.distances,
            "duplicates": pa.array(drawn.group, mask=drawn.group < 0),
        }
    )


def rows(drawn: CorpusMap) -> Iterator[dict[str, object]]:
    """Yield the rows of `to_table`."""
    for batch in to_table(drawn).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def summary(drawn: CorpusMap, outliers: int = 20) -> dict[str, object]:
    """Describe a map as one JSON object: settings, clusters, outliers, near-duplicates."""
    sizes = [int((drawn.cluster == number).sum()) for number in range(len(drawn.words))]
    settings = drawn.settings
    return {
        "index": drawn.index,
        "model": drawn.model,
        "metric": drawn.metric,
        "documents": drawn.n_indexed,
        "mapped": len(drawn),
        "neighbours": drawn.neighbours.at.shape[1],
        "duplicates_from": settings.duplicates if drawn.has_groups else None,
        "seed": settings.seed,
        "clusters": [
            {"cluster": number, "documents": size, "words": words}
            for number, (size, words) in enumerate(zip(sizes, drawn.words, strict=True))
        ],
        "outliers": [
            {
                "doc_id": drawn.doc_ids[at],
                "title": drawn.titles[at],
                "distance": float(drawn.distances[at]),
            }
            for at in drawn.outliers(outliers)
        ],
        "duplicates": [[drawn.doc_ids[at] for at in group] for group in drawn.groups()],
        "columns_left_out": drawn.left_out,
    }
