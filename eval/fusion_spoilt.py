"""Compare hybrid search with a model whose cosines all lie high and with the same model as it is.

    python eval/fusion_spoilt.py --data DATA [--work FOLDER]

The spoilt model adds one random direction, of `LENGTH` times the norm of a vector, to every vector
of the model, and scales the sum to norm 1. Then all cosines of queries and documents lie above
`LOWEST`, as with some published models. Collections are indexed and searched as users do it: the
build measures the mean cosine of unrelated texts, by which hybrid search maps the cosines of a
model. For comparison, the spoilt model is also searched with its cosines as they are.

The exit code is 1 if a limit does not hold. Vectors are kept in the user's cache, and results of
finished collections under --work, so an interrupted run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from kept import kept

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.evaluate.metrics.significance import compare_means
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.tasks import find_task
from sbert_search.index.building.model_check import unrelated_cosine
from sbert_search.lab.anisotropy.remedies import LinearMap, MappedEmbedder
from sbert_search.search.options import SearchOptions
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.retrieval import read_queries

COLLECTIONS = ("scifact", "cranfield", "lisa", "npl")
LENGTH, SEED = 2.0, 0
LOWEST = 0.7  # cosine of a query and a document
MOST_LOST = 0.01  # nDCG@10
SYSTEMS = ("unspoilt", "spoilt", "not_mapped")


def main() -> None:
    """Evaluate, write the report, and exit with 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--collections", nargs="+", choices=COLLECTIONS, default=COLLECTIONS)
    parser.add_argument("--work", type=Path, default=Path("eval/runs/fusion-spoilt"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/fusion"))
    options = parser.parse_args()
    collections = {}
    with closing(CachedEmbedder(Embedder(options.model, precision="fp32"))) as embedder:
        for name in options.collections:
            measure = partial(compare, name, embedder, options.data)
            collections[name] = kept(options.work / f"{name}.json", measure)
        cosines = {
            "unspoilt": unrelated_cosine(embedder),
            "spoilt": unrelated_cosine(spoilt(embedder)),
        }
    report: dict[str, Any] = {
        "collections": collections,
        "unrelated_cosine": cosines,
        "checked": checked(collections),
        **made_with(),
        "seed": SEED,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    shown = markdown(report)
    replace_file(options.out / "spoilt.json", (json.dumps(report, indent=1) + "\n").encode())
    replace_file(options.out / "spoilt.md", shown.encode())
    sys.stdout.write(shown)
    sys.exit(any(not check["holds"] for check in report["checked"]))


def spoilt(embedder: TextEmbedder) -> MappedEmbedder:
    """Add a random direction to all vectors of an embedder of unit vectors."""
    direction = np.random.default_rng(SEED).standard_normal(embedder.dim)
    direction *= LENGTH / np.linalg.norm(direction)
    return MappedEmbedder(embedder, "spoilt", LinearMap(np.eye(embedder.dim), -direction))


def compare(name: str, embedder: TextEmbedder, data: Path) -> dict[str, Any]:
    """Evaluate hybrid search with each of `SYSTEMS` on a collection."""
    task, bad = find_task("retrieval", name), spoilt(embedder)
    scores: dict[str, Mapping[str, float]] = {}
    for system in SYSTEMS:
        note(f"{name}, {system}")
        # No map, as for a model of a low mean cosine.
        place = "sbert_search.index.building.build.unrelated_cosine"
        unmapped = system == "not_mapped"
        with mock.patch(place, return_value=0.0) if unmapped else nullcontext():
            evaluation = evaluate_retrieval(
                task,
                embedder if system == "unspoilt" else bad,
                data=data,
                search=SearchOptions(mode="hybrid"),
            )
        scores[system] = evaluation.per_item[task.main_metric]
    queries = scores["unspoilt"].keys()
    values = {system: [scores[system][query] for query in queries] for system in SYSTEMS}
    difference = compare_means(values["unspoilt"], values["spoilt"])
    return {
        "metric": task.main_metric,
        "queries": len(queries),
        **{system: float(np.mean(found)) for system, found in values.items()},
        "difference": difference.value,
        "low": difference.low,
        "high": difference.high,
        "p": difference.p_value,
        "lowest_cosine": lowest_cosine(bad, data / task.path, queries),
    }


def lowest_cosine(embedder: TextEmbedder, folder: Path, queries: Iterable[str]) -> float:
    """Return the lowest cosine of a query, named by its id, and a document of a BEIR folder."""
    wanted = set(queries)
    asked = [query.text for query in read_queries(folder) if query.query_id in wanted]
    vectors, lowest = embedder.encode_query(asked), 1.0
    for batch in CorpusReader([folder], on_error="skip").batches():
        documents = embedder.encode_document([each.full_text for each in batch.documents])
        lowest = min(lowest, float((vectors @ documents.T).min()))
    return lowest


def checked(collections: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare the figures with their limits."""
    losses = [each["unspoilt"] - each["spoilt"] for each in collections.values()]
    lowest = min(each["lowest_cosine"] for each in collections.values())
    rows = [
        ("lowest cosine, at least", lowest, LOWEST, lowest >= LOWEST),
        ("largest loss of a collection, at most", max(losses), MOST_LOST, max(losses) <= MOST_LOST),
        ("mean loss, at most", float(np.mean(losses)), MOST_LOST, np.mean(losses) <= MOST_LOST),
    ]
    return [
        {"figure": name, "value": value, "limit": limit, "holds": bool(holds)}
        for name, value, limit, holds in rows
    ]


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    rows: Mapping[str, Mapping[str, Any]] = report["collections"]
    metric = " and ".join(dict.fromkeys(each["metric"] for each in rows.values()))
    cosines: Mapping[str, float] = report["unrelated_cosine"]
    means = [f"{np.mean([each[system] for each in rows.values()]):.4f}" for system in SYSTEMS]
    change = float(np.mean([each["difference"] for each in rows.values()]))
    machine = report["machine"]
    lines = [
        "# Hybrid search with a model whose cosines all lie high",
        "",
        "Written by `eval/fusion_spoilt.py`. The spoilt model adds one random direction to every",
        f"vector. {metric} of hybrid search; the difference is that of the spoilt model and the",
        'model as it is, with a 95 % interval. "Not mapped" is the spoilt model without the map of',
        "cosines.",
        "",
        *table(
            ("collection", "as it is", "spoilt", "difference", "p", "not mapped", "lowest cosine"),
            [
                *(
                    (
                        name,
                        f"{row['unspoilt']:.4f}",
                        f"{row['spoilt']:.4f}",
                        f"{row['difference']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})",
                        f"{row['p']:.3f}",
                        f"{row['not_mapped']:.4f}",
                        f"{row['lowest_cosine']:.3f}",
                    )
                    for name, row in rows.items()
                ),
                ("mean", means[0], means[1], f"{change:+.4f}", "", means[2], ""),
            ],
        ),
        "",
        f"The mean cosine of unrelated texts is {cosines['unspoilt']:.3f} with the model as it is,",
        f"and {cosines['spoilt']:.3f} with the spoilt model.",
        "",
        *table(
            ("figure", "value", "limit", "holds"),
            [
                (
                    check["figure"],
                    f"{check['value']:.4f}",
                    f"{check['limit']:g}",
                    "yes" if check["holds"] else "**no**",
                )
                for check in report["checked"]
            ],
        ),
        "",
        f"Command: `{report['command']}`; commit {report['commit']}; {machine['cpu']}, "
        f"{machine['cores']} cores; seed {report['seed']}.",
        "",
    ]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
