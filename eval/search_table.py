"""Compare dense, lexical, hybrid and reranked search on several collections in one table.

    python eval/search_table.py --data DATA --choices CHOICES.json --reranker MODEL

A system is one of the four kinds of search. Hybrid search fuses the hits of dense and of lexical
search; reranked search reranks the hits of hybrid search. The settings of the fusion, and the depth
and weight of the reranker, come from --choices. That file is written by `eval/scifact_reranker.py`,
which reads no test data.

Reports are written under --out, in a folder for each system. An existing report is not made again.
If it was made with other choices or models, the script ends with an error.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.config import from_mapping, to_mapping
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.evaluate.comparison import ALPHA, compare_runs
from sbert_search.evaluate.manifest import Evaluation, read_evaluation
from sbert_search.evaluate.metrics.significance import holm
from sbert_search.evaluate.report import write_reports
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.tasks import EvalTask, find_task
from sbert_search.search.options import Fusion, SearchMode, SearchOptions
from sbert_search.search.rerankers import BestWindow, Reranker

TASKS = ("scifact", "cranfield", "lisa", "npl")
SYSTEMS: dict[str, SearchMode] = {
    "dense": "dense",
    "lexical": "lexical",
    "hybrid": "hybrid",
    "reranked": "hybrid",
}
# Pairs of systems whose difference is tested.
QUESTIONS = (("lexical", "hybrid"), ("dense", "hybrid"), ("hybrid", "reranked"))


def evaluate(
    tasks: Sequence[EvalTask],
    data: Path,
    out: Path,
    model: str | None,
    scorer: Path,
    fusion: Fusion,
    depth: int,
) -> None:
    """Evaluate every system on every task that has no report yet."""
    reranker = BestWindow(Reranker(scorer, precision="fp32"))
    with closing(CachedEmbedder(Embedder(model, precision="fp32"))) as embedder:
        for system, mode in SYSTEMS.items():
            search = SearchOptions(mode=mode, fusion=fusion, rerank_depth=depth)
            target = expected(search, embedder, reranker)
            evaluated = {
                task.name: kept_evaluation(record, task, target)
                for task in tasks
                if (record := out / system / f"{task.name}.json").exists()
            }
            for task in (task for task in tasks if task.name not in evaluated):
                note(f"{system}, {task.name}")
                evaluated[task.name] = evaluate_retrieval(
                    task,
                    embedder,
                    data=data,
                    search=search,
                    reranker=reranker if system == "reranked" else None,
                )
                done = [evaluated[each.name] for each in tasks if each.name in evaluated]
                write_reports(done, out / system)
                embedder.close()  # writes the new vectors


def expected(
    search: SearchOptions, embedder: TextEmbedder, reranker: BestWindow
) -> dict[str, object]:
    """Return the recorded settings by which a report of other choices or models is known."""
    identity = embedder.identity.to_mapping()
    del identity["name"]  # the folder of a model may have another name
    return {
        **{f"fusion {name}": value for name, value in to_mapping(search.fusion).items()},
        **{f"model {name}": value for name, value in identity.items()},
        "reranker weights sha256": reranker.identity.weights_sha256,
        "rerank depth": search.rerank_depth,
        "rerank weight": search.fusion.rerank_weight,
        "rerank windows": reranker.most,
    }


def kept_evaluation(path: Path, task: EvalTask, target: Mapping[str, object]) -> Evaluation:
    """Read a report; exit if its main metric, its settings or its model are not the wanted ones."""
    record = read_evaluation(path)
    recorded = {
        **record["manifest"]["settings"],
        **{f"model {name}": value for name, value in record["manifest"]["model"].items()},
        "main metric": record["task"]["main_metric"],
    }
    target = {**target, "main metric": task.main_metric}
    for name in sorted(target.keys() & recorded.keys()):
        if recorded[name] != target[name]:
            sys.exit(
                f"{path} was made with {name} {recorded[name]}, not {target[name]}; remove this "
                "report, or pass the --choices, --model and --reranker that it was made with."
            )
    return Evaluation(
        task=from_mapping(EvalTask, record["task"]),
        scores=record["scores"],
        per_item=record["per_item"],
        counts=record["counts"],
        manifest=record["manifest"],
    )


def compared(out: Path, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Compare the pairs of `QUESTIONS` on every task; Holm's correction covers all comparisons."""
    pairs = [(first, second, task) for first, second in QUESTIONS for task in tasks]
    comparisons = [
        compare_runs(out / first / f"{task}.json", out / second / f"{task}.json")[0]
        for first, second, task in pairs
    ]
    corrected = holm([each.difference.p_value for each in comparisons])
    return [
        {
            "task": task,
            "a": first,
            "b": second,
            "difference": each.difference.value,
            "interval": [each.difference.low, each.difference.high],
            "p": each.difference.p_value,
            "p_holm": p_value,
            "wins": len(each.wins),
            "losses": len(each.losses),
        }
        for (first, second, task), each, p_value in zip(pairs, comparisons, corrected, strict=True)
    ]


def markdown(
    scores: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, str],
) -> str:
    """Write a table of the systems, and a table of their differences.

    Args:
        scores: Value and interval of each system on each task.
        rows: Comparisons of `compared`.
        metrics: Main metric of each task.
    """
    several = len(set(metrics.values())) > 1
    shown_tasks = {name: f"{name}, {of}" if several else name for name, of in metrics.items()}
    lines = [
        "# Dense, lexical, hybrid and reranked search",
        "",
        f"{' and '.join(dict.fromkeys(metrics.values()))} with the bootstrap interval of 95 % over "
        "the queries.",
        "",
        f"| collection | {' | '.join(SYSTEMS)} |",
        "|---" * (len(SYSTEMS) + 1) + "|",
    ]
    for task, systems in scores.items():
        shown = (
            f"{s['value']:.4f} [{s['interval'][0]:.4f}, {s['interval'][1]:.4f}]"
            for s in systems.values()
        )
        lines.append(f"| {shown_tasks[task]} | {' | '.join(shown)} |")
    lines += [
        "",
        "| B minus A | collection | difference | 95 % interval | p | p (Holm) | "
        "queries better, worse | |",
        "|---|---|--:|---|--:|--:|---|---|",
    ]
    for row in rows:
        low, high = row["interval"]
        cells = [
            f"{row['b']} minus {row['a']}",
            shown_tasks[row["task"]],
            f"{row['difference']:+.4f}",
            f"{low:+.4f} to {high:+.4f}",
            f"{row['p']:.4f}",
            f"{row['p_holm']:.4f}",
            f"{row['wins']}, {row['losses']}",
            "no difference shown" if row["p_holm"] >= ALPHA else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def scores_of(out: Path, task: str) -> dict[str, Any]:
    """Read the main metric of each system on a task, with its interval."""
    records = {system: read_evaluation(out / system / f"{task}.json") for system in SYSTEMS}
    return {
        system: {
            "value": record["scores"][record["task"]["main_metric"]],
            "interval": record["interval"],
        }
        for system, record in records.items()
    }


def main() -> None:
    """Evaluate all systems and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument(
        "--choices", type=Path, required=True, help="choices.json of scifact_reranker.py"
    )
    parser.add_argument("--reranker", type=Path, required=True, help="folder of the cross-encoder")
    parser.add_argument("--model", help="bi-encoder of dense and hybrid search")
    parser.add_argument("--out", type=Path, default=Path("eval/reports/search"))
    parser.add_argument("tasks", nargs="*", default=TASKS)
    options = parser.parse_args()
    chosen = json.loads(options.choices.read_text("utf-8"))
    settings = {**chosen["fusion"]["fusion"], "rerank_weight": chosen["reranking"]["weight"]}
    fusion, depth = from_mapping(Fusion, settings), chosen["reranking"]["depth"]
    named, out = [find_task("retrieval", name) for name in options.tasks], options.out
    evaluate(
        named,
        options.data,
        out,
        model=options.model,
        scorer=options.reranker,
        fusion=fusion,
        depth=depth,
    )
    metrics = {task.name: task.main_metric for task in named}
    tasks = list(metrics)
    scores = {task: scores_of(out, task) for task in tasks}
    rows = compared(out, tasks)
    record = json.dumps({"scores": scores, "compared": rows, **made_with()}, indent=1)
    replace_file(out / "table.json", (record + "\n").encode())
    replace_file(out / "table.md", markdown(scores, rows, metrics).encode())
    sys.stdout.write(markdown(scores, rows, metrics))


if __name__ == "__main__":
    main()
