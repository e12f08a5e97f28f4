"""Measure what int8 costs in quality, and check it against fixed limits.

    python eval/int8_quality.py --data DATA [--cross-encoder FOLDER] [--work FOLDER]

The script evaluates a bi-encoder in fp32 and in int8 on the test pairs of STSb and on SciFact,
LISA, NPL and Cranfield, and compares the vectors of all their documents and queries. It evaluates a
cross-encoder on the pairs of STSb. Without --cross-encoder, one is trained on the training pairs of
STSb. int8 is calibrated with the texts of the package, which are none of these data. The exit code
is 1 if a limit of `LIMITS` does not hold. Vectors are kept in the user's cache, and results of
finished steps under --work, so an interrupted run can be repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from kept import kept

from sbert_search.base.device import Precision
from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import Vectors
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.significance import (
    Difference,
    compare_correlations,
    compare_means,
    holm,
)
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.search.options import SearchOptions
from sbert_search.search.rerankers import Reranker
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.retrieval import read_queries
from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.recipe import load_recipe
from sbert_search.train.run import MODEL

COLLECTIONS = ("scifact", "lisa", "npl", "cranfield")
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
LIMITS = {
    "STSb: points of Spearman's correlation lost": 0.3,
    "mean nDCG@10: percent lost": 0.5,
    "collections with a significantly lower nDCG@10": 0.0,
    "1 - mean cosine with fp32": 0.005,
    "cross-encoder: 1 - Spearman's correlation with fp32": 0.01,
}
ALPHA = 0.05  # of the paired randomisation tests, after Holm's correction


def main() -> None:
    """Evaluate, write the report, and exit with 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--model", help="default: all-MiniLM-L6-v2")
    parser.add_argument("--cross-encoder", help="default: one is trained on STSb")
    parser.add_argument("--collections", nargs="+", choices=COLLECTIONS, default=COLLECTIONS)
    parser.add_argument("--work", type=Path, default=Path("eval/runs/int8"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/int8"))
    options = parser.parse_args()
    work: Path = options.work
    pairs = kept(work / "cross-encoder.json", lambda: compare_scores(options))
    sts = kept(work / "stsb.json", lambda: compare_sts(options))
    ndcg, cosines = {}, {"stsb, sentences": sts.pop("cosines")}
    for name in options.collections:
        found = kept(work / f"{name}.json", partial(compare_retrieval, options, name))
        ndcg[name] = found["ndcg"]
        cosines |= found["cosines"]
    for row, p in zip(ndcg.values(), holm([row["p"] for row in ndcg.values()]), strict=True):
        row["p_holm"] = p
    report: dict[str, Any] = {
        "sts": sts,
        "ndcg": ndcg,
        "cosines": cosines,
        "cross_encoder": pairs,
        "weights_sha256": (identity := open_in(options, "int8").identity).weights_sha256,
        "calibration": identity.calibration,
        "made_with": made_with(),
    }
    report["checked"] = checked(report)
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    replace_file(options.out / "README.md", markdown(report).encode())
    sys.stdout.write(markdown(report))
    sys.exit(any(not check["holds"] for check in report["checked"]))


def open_in(options: argparse.Namespace, precision: Precision) -> Embedder:
    """Open the bi-encoder on the CPU."""
    return Embedder(options.model, device="cpu", precision=precision)


def compare_sts(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate STSb in both precisions, and compare the correlations and the vectors."""
    task = find_task("sts", "stsb")
    texts = [
        text for pair in read_pairs(options.data / task.path) for text in (pair.text1, pair.text2)
    ]
    found, vectors, beyond = [], [], 0.0
    for precision in PRECISIONS:
        embedder = open_in(options, precision)
        found.append(evaluate_sts(task, embedder, data=options.data).per_item)
        vectors.append(embedder.encode(texts))
        beyond = embedder.beyond_calibration
    gold = np.array(list(found[0]["gold"].values()))
    first, second = (
        np.array([run["predicted"][pair] for pair in found[0]["gold"]]) for run in found
    )
    return {
        "pairs": len(gold),
        "fp32": spearman(first, gold),
        "int8": spearman(second, gold),
        **_difference(compare_correlations(first, second, gold)),
        "beyond_calibration": beyond,
        "cosines": _statistics(*vectors),
    }


def compare_retrieval(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Evaluate a collection in both precisions, and compare nDCG@10 and the vectors."""
    task = find_task("retrieval", name)
    folder, found, vectors, beyond = options.data / task.path, [], [], 0.0
    batches = CorpusReader([folder], on_error="skip").batches()  # Cranfield has blank documents
    documents = [document.full_text for batch in batches for document in batch.documents]
    queries = [query.text for query in read_queries(folder)]
    for precision in PRECISIONS:
        note(f"{name} in {precision}")
        embedder = open_in(options, precision)
        with closing(CachedEmbedder(embedder)) as cached:
            dense = SearchOptions(mode="dense")
            evaluation = evaluate_retrieval(task, cached, data=options.data, search=dense)
            found.append(evaluation.per_item[task.main_metric])
            vectors.append((cached.encode_document(documents), cached.encode_query(queries)))
        beyond = embedder.beyond_calibration
    one, two = ([run[query] for query in found[0]] for run in found)
    return {
        "ndcg": {
            "queries": len(one),
            "fp32": float(np.mean(one)),
            "int8": float(np.mean(two)),
            **_difference(compare_means(one, two)),
            "beyond_calibration": beyond,
        },
        "cosines": {
            f"{name}, documents": _statistics(vectors[0][0], vectors[1][0]),
            f"{name}, queries": _statistics(vectors[0][1], vectors[1][1]),
        },
    }


def _difference(found: Difference) -> dict[str, float]:
    return {"difference": found.value, "low": found.low, "high": found.high, "p": found.p_value}


def _statistics(first: Vectors, second: Vectors) -> dict[str, float]:
    """Return the number of vectors, and mean and least cosine of those of the same texts."""
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / norms
    return {"texts": len(cosines), "mean": float(cosines.mean()), "least": float(cosines.min())}


def compare_scores(options: argparse.Namespace) -> dict[str, float | str]:
    """Compare the scores of a cross-encoder in both precisions on the test pairs of STSb."""
    folder = options.cross_encoder or train(options)
    pairs = list(read_pairs(options.data / find_task("sts", "stsb").path))
    gold = np.array([pair.score for pair in pairs], dtype=np.float64)
    texts = [(pair.text1, pair.text2) for pair in pairs]
    exact, int8 = (
        Reranker(folder, device="cpu", precision=precision).predict(texts)
        for precision in PRECISIONS
    )
    return {
        "model": Path(folder).name if options.cross_encoder else "trained on STSb by this script",
        "pairs": len(pairs),
        "spearman": spearman(exact, int8),
        "fp32": spearman(exact, gold),
        "int8": spearman(int8, gold),
    }


def train(options: argparse.Namespace) -> Path:
    """Train a cross-encoder on STSb's training pairs, or resume that."""
    run: Path = options.work / "stsb-cross-encoder"
    if not (run / MODEL).is_dir():
        settings = [
            f"data.train={options.data / 'stsb' / 'train.jsonl.gz'}",
            "budget.epochs=1",
        ]
        if options.model:
            settings.append(f"model={options.model}")
        recipe = load_recipe(CrossEncoderRecipe, "cross-encoder", "stsb", settings)
        train_cross_encoder(recipe, run, resume=bool(checkpoints(run)))
    return run / MODEL


def checked(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the figures with `LIMITS`."""
    sts, rows, cosines = report["sts"], report["ndcg"].values(), report["cosines"].values()
    before, after = (np.mean([row[name] for row in rows]) for name in PRECISIONS)
    worse = [row for row in rows if row["difference"] < 0 and row["p_holm"] < ALPHA]
    total = sum(some["texts"] for some in cosines)
    mean = sum(some["mean"] * some["texts"] for some in cosines) / total
    figures = (
        100 * (sts["fp32"] - sts["int8"]),
        100 * (1 - after / before),
        float(len(worse)),
        1 - mean,
        1 - report["cross_encoder"]["spearman"],
    )
    return [
        {"figure": name, "value": float(value), "limit": limit, "holds": bool(value <= limit)}
        for (name, limit), value in zip(LIMITS.items(), figures, strict=True)
    ]


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    sts, pairs = report["sts"], report["cross_encoder"]
    beyond = max(row["beyond_calibration"] for row in (sts, *report["ndcg"].values()))
    lines = [
        "# int8 compared with fp32",
        "",
        "Written by `eval/int8_quality.py`. Differences are int8 minus fp32, with 95 % intervals",
        "from 10,000 bootstrap resamples; p-values are from a paired randomisation test, those of",
        "the collections after Holm's correction.",
        "",
        *_table(
            ("data", "metric", "fp32", "int8", "difference", "p"),
            [
                ("stsb", "Spearman x 100", *_scores(sts, 100), f"{sts['p']:.3f}"),
                *(
                    (name, "nDCG@10", *_scores(row, 1), f"{row['p_holm']:.3f}")
                    for name, row in report["ndcg"].items()
                ),
            ],
        ),
        "",
        *_table(
            ("texts", "number", "mean cosine", "least cosine"),
            [
                (name, f"{some['texts']:,}", f"{some['mean']:.4f}", f"{some['least']:.4f}")
                for name, some in report["cosines"].items()
            ],
        ),
        "",
        f"Cross-encoder ({pairs['model']}), {pairs['pairs']:,} pairs of STSb: Spearman's",
        f"correlation of int8 with fp32 is {pairs['spearman']:.4f}; with the gold scores it is",
        f"{100 * pairs['fp32']:.2f} in fp32 and {100 * pairs['int8']:.2f} in int8 (x 100).",
        "",
        "Largest share of inputs of int8 layers beyond the calibrated range in a data set: "
        f"{beyond:.1e}.",
        "",
        *_table(
            ("figure", "value", "limit", "holds"),
            [
                (
                    check["figure"],
                    f"{check['value']:.4g}",
                    f"{check['limit']:g}",
                    "yes" if check["holds"] else "**no**",
                )
                for check in report["checked"]
            ],
        ),
        "",
    ]
    return "\n".join(lines)


def _scores(row: Mapping[str, float], factor: float) -> tuple[str, str, str]:
    places = 2 if factor == 100 else 4
    first, second, change, low, high = (
        f"{factor * row[name]:.{places}f}" for name in ("fp32", "int8", "difference", "low", "high")
    )
    return first, second, f"{change} ({low} to {high})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
