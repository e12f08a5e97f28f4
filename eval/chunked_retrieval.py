"""Compare long texts that are cut with long texts that are split into passages.

    python eval/chunked_retrieval.py DATA

Articles: the paragraphs of each article of the first half of SQuAD 2.0's development set, joined by
blank lines, make one document; the queries are its answerable questions. Sizes and overlaps of
passages are compared on these articles only: by nDCG@10 of the articles, and by the share of
queries with an answer inside one of the first k passages, or inside the first passages of 1,024
tokens together. A text that is cut counts as one passage, the part that the model reads.

SciFact and Cranfield: nDCG@10 of texts that are split, at the size and overlap that
`BuildSettings` has by default, less nDCG@10 of texts that are cut, in dense and in hybrid search.
The latter are those of the reports of eval/search_table.py. The choice of size and overlap does not
use these collections.

Reports are written to --out; steps whose file exists are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kept import kept
from numpy.typing import NDArray
from squad_wikipedia import rows_of, write_lines

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.comparison import compare_runs
from sbert_search.evaluate.manifest import read_evaluation
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.evaluate.metrics.significance import (
    Difference,
    compare_means,
    holm,
    mean_interval,
)
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.tasks import find_task
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.index import Index
from sbert_search.models.loading.identity import sha256_of
from sbert_search.search.options import SearchMode, SearchOptions
from sbert_search.text.tokens.chunking import WHOLE_WORDS

COLLECTIONS = ("cranfield", "scifact")
CUT_REPORTS = Path("eval/reports/search")  # made by eval/search_table.py with texts that are cut
SYSTEM_MODES: tuple[SearchMode, ...] = ("dense", "hybrid")
ALPHA = 0.05
TOKENS = 1024  # of the passages that are handed on together
DEPTH = 40  # passages that surely hold so many tokens
SYSTEMS: dict[str, BuildSettings] = {
    "cut": BuildSettings(on_truncate="warn"),
    **{
        f"{size} tokens, overlap {overlap}": BuildSettings(
            on_truncate="chunk", chunk_tokens=size, chunk_overlap=overlap
        )
        for size in (256, 128, 64)
        for overlap in (0, size // 8)
    },
    "256 tokens, between words": BuildSettings(
        on_truncate="chunk", chunk_tokens=256, chunk_borders="words"
    ),
}
MEASURES = ("nDCG@10", "answer@1", "answer@3", "answer@10", "answer in 1,024 tokens")


@dataclass(frozen=True)
class Articles:
    """Articles by title, questions by id, the article of each question, and its answers' places."""

    texts: Mapping[str, str]
    questions: Mapping[str, str]
    article_of: Mapping[str, str]
    answers: Mapping[str, list[tuple[int, int]]]


def read_articles(file: Path) -> Articles:
    """Join the paragraphs of each article of a SQuAD file, in the order of the file."""
    rows = list(rows_of(file))
    paragraphs: dict[str, dict[str, int]] = {}
    for row in rows:
        known = paragraphs.setdefault(row["title"], {})
        known.setdefault(row["context"], sum(len(text) + 2 for text in known))
    asked = [row for row in rows if not row["is_impossible"]]
    places = {}
    for row in asked:
        start = paragraphs[row["title"]][row["context"]]
        places[row["id"]] = [(start + at, start + at + len(text)) for text, at in row["answers"]]
    return Articles(
        {title: "\n\n".join(known) for title, known in paragraphs.items()},
        {row["id"]: row["question"].strip() for row in asked},
        {row["id"]: row["title"] for row in asked},
        places,
    )


def evaluate_articles(
    articles: Articles, settings: BuildSettings, embedder: Embedder, queries: NDArray[np.float32]
) -> dict[str, Any]:
    """Build an index of the articles, search it, and return each question's scores by measure."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "articles.jsonl"
        rows = ({"_id": title, "text": text} for title, text in articles.texts.items())
        write_lines(source, map(json.dumps, rows))
        index = Index.build(source, out=Path(scratch) / "index", model=embedder, settings=settings)
        state = index.state
        scores, rows_found = state.search(queries, state.n_rows)
        passages = {passage.row: passage for passage in state.fetch(state.live_rows())}
        read = {row: (p.char_start, p.char_end) for row, p in passages.items()}
        if settings.on_truncate == "warn":
            for row, passage in passages.items():
                read[row] = embedder.split(passage.document.text, chunking=WHOLE_WORDS)[0]
        values: dict[str, list[float]] = {name: [] for name in MEASURES[1:]}
        run: dict[str, dict[str, float]] = {}
        for question, ranked, similarity in zip(
            articles.questions, rows_found.tolist(), scores.tolist(), strict=True
        ):
            by_article: dict[str, float] = {}
            for row, score in zip(ranked, similarity, strict=True):
                by_article.setdefault(passages[row].document.doc_id, score)
            run[question] = by_article
            first = ranked[:DEPTH]
            holds = [
                passages[row].document.doc_id == articles.article_of[question]
                and any(
                    read[row][0] <= start and end <= read[row][1]
                    for start, end in articles.answers[question]
                )
                for row in first
            ]
            total = np.cumsum([passages[row].n_tokens for row in first])
            for k in (1, 3, 10):
                values[f"answer@{k}"].append(float(any(holds[:k])))
            within = int(np.searchsorted(total, TOKENS, "right"))
            values["answer in 1,024 tokens"].append(float(any(holds[:within])))
    qrels = {question: {title: 1} for question, title in articles.article_of.items()}
    ndcg = score_run(run, qrels, ["nDCG@10"])["nDCG@10"]
    return {
        "passages": len(passages),
        "tokens": int(sum(p.n_tokens for p in passages.values())),
        "per_query": {"nDCG@10": [ndcg[q] for q in articles.questions], **values},
    }


def summary(systems: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the means of each system with intervals, and its difference from the cut texts."""
    rows = []
    for name, system in systems.items():
        measures = {}
        for measure in MEASURES:
            values, cut = system["per_query"][measure], systems["cut"]["per_query"][measure]
            measures[measure] = {
                "value": float(np.mean(values)),
                "interval": list(mean_interval(values, within=(0, 1))),
                "less cut": as_record(compare_means(cut, values)),
            }
        rows.append(
            {
                "system": name,
                "passages": system["passages"],
                "tokens": system["tokens"],
                "measures": measures,
            }
        )
    return rows


def as_record(difference: Difference) -> dict[str, Any]:
    """Return a difference as JSON."""
    return {
        "difference": difference.value,
        "interval": [difference.low, difference.high],
        "p": difference.p_value,
    }


# Differences that the choice of the default overlap and of the borders looks at.
PAIRS = (
    ("256 tokens, overlap 0", "256 tokens, overlap 32"),
    ("128 tokens, overlap 0", "128 tokens, overlap 16"),
    ("64 tokens, overlap 0", "64 tokens, overlap 8"),
    ("256 tokens, between words", "256 tokens, overlap 0"),
    ("256 tokens, overlap 0", "128 tokens, overlap 0"),
    ("256 tokens, overlap 0", "64 tokens, overlap 0"),
)


def pairs_of(systems: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare pairs of systems by the answers found in 1,024 tokens, with Holm's correction."""
    measure = MEASURES[-1]
    found = [
        compare_means(systems[a]["per_query"][measure], systems[b]["per_query"][measure])
        for a, b in PAIRS
    ]
    corrected = holm([difference.p_value for difference in found])
    return [
        {"a": a, "b": b, **as_record(difference), "p_holm": p}
        for (a, b), difference, p in zip(PAIRS, found, corrected, strict=True)
    ]


def evaluate_collections(data: Path, out: Path, embedder: Embedder) -> list[dict[str, Any]]:
    """Evaluate split texts on the judged collections and compare them with the cut ones."""
    rows = []
    for name in COLLECTIONS:
        evaluate_split(name, data, out, embedder)
        for mode in SYSTEM_MODES:
            record = out / mode / f"{name}.json"
            (comparison,) = compare_runs(CUT_REPORTS / mode / f"{name}.json", record)
            counts = read_evaluation(record)["counts"]
            rows.append(
                {
                    "collection": name,
                    "mode": mode,
                    "documents": counts["documents"],
                    "passages": counts["passages"],
                    "cut": comparison.first,
                    "split": comparison.second,
                    **as_record(comparison.difference),
                    "better": len(comparison.wins),
                    "worse": len(comparison.losses),
                }
            )
    corrected = holm([row["p"] for row in rows])
    return [{**row, "p_holm": p} for row, p in zip(rows, corrected, strict=True)]


def evaluate_split(name: str, data: Path, out: Path, embedder: Embedder) -> None:
    """Evaluate split texts on one collection, and write a report for each mode of search."""
    if all((out / mode / f"{name}.json").exists() for mode in SYSTEM_MODES):
        return
    note(name)
    task = find_task("retrieval", name)
    settings = BuildSettings(on_truncate="chunk", on_error=task.on_error)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "index"
        Index.build(data / task.path, out=path, model=embedder, settings=settings)
        for mode in SYSTEM_MODES:
            options = SearchOptions(mode=mode)
            found = evaluate_retrieval(task, embedder, data=data, index=path, search=options)
            (out / mode).mkdir(parents=True, exist_ok=True)
            replace_file(out / mode / f"{name}.json", found.to_json().encode())


def markdown(record: Mapping[str, Any]) -> str:
    """Write the tables of the report."""
    lines = [
        "# Long texts: cut or split",
        "",
        "all-MiniLM-L6-v2 reads 256 tokens of a text. Passages are cut at headings, paragraphs and "
        "sentences, except where the table says otherwise.",
        "",
        f"## {record['articles']} articles of SQuAD, {record['questions']:,} questions",
        "",
        "Share of questions with an answer in the first k passages, or in the first passages of "
        "1,024 tokens together; nDCG@10 is that of the articles. Below each value: its difference "
        "from cut texts, with the interval of 95 %.",
        "",
        f"| texts | passages | {' | '.join(MEASURES)} |",
        "|---|--:|" + "---|" * len(MEASURES),
    ]
    for row in record["squad"]:
        cells = []
        for measure in MEASURES:
            value = row["measures"][measure]
            low, high = value["less cut"]["interval"]
            shown = f"{value['value']:.4f}"
            if row["system"] != "cut":
                change = value["less cut"]["difference"]
                shown += f"<br>{change:+.4f} [{low:+.4f}, {high:+.4f}]"
            cells.append(shown)
        lines.append(f"| {row['system']} | {row['passages']:,} | {' | '.join(cells)} |")
    lines += [
        "",
        "Answers in 1,024 tokens, B less A:",
        "",
        "| A | B | difference | 95 % interval | p (Holm) | |",
        "|---|---|--:|---|--:|---|",
    ]
    for pair in record["pairs"]:
        lines.append(f"| {pair['a']} | {pair['b']} | {_difference(pair)} |")
    lines += [
        "",
        "## Judged collections",
        "",
        "nDCG@10, split less cut:",
        "",
        "| collection | search | documents | passages | cut | split | difference | 95 % interval "
        "| p (Holm) | | better, worse |",
        "|---|---|--:|--:|--:|--:|--:|---|--:|---|---|",
    ]
    for row in record["collections"]:
        lines.append(
            f"| {row['collection']} | {row['mode']} | {row['documents']:,} | {row['passages']:,} | "
            f"{row['cut']:.4f} | {row['split']:.4f} | {_difference(row)} | "
            f"{row['better']}, {row['worse']} |"
        )
    machine, libraries = record["machine"], record["libraries"]
    lines += [
        "",
        f"Made by `{record['command']}`, commit {record['commit']}, fp32, seed 0 of intervals and "
        f"tests, on {machine['cpu']}, {machine['cores']} cores, {machine.get('threads')} thread; "
        f"{', '.join(f'{name} {version}' for name, version in libraries.items())}.",
        "",
    ]
    return "\n".join(lines)


def _difference(row: Mapping[str, Any]) -> str:
    low, high = row["interval"]
    verdict = "" if row["p_holm"] < ALPHA else "no difference shown"
    return f"{row['difference']:+.4f} | {low:+.4f} to {high:+.4f} | {row['p_holm']:.4f} | {verdict}"


def evaluate_squad(file: Path, embedder: Embedder, systems: Sequence[str]) -> dict[str, Any]:
    """Evaluate systems on the articles of a SQuAD file."""
    articles = read_articles(file)
    queries = embedder.encode_query(list(articles.questions.values()))
    found = {}
    for name in systems:
        note(f"SQuAD articles: {name}")
        found[name] = evaluate_articles(articles, SYSTEMS[name], embedder, queries)
    return {
        "squad": summary(found),
        "pairs": pairs_of(found),
        "articles": len(articles.texts),
        "questions": len(articles.questions),
        "sha256": {f"squad/{file.name}": sha256_of(file)},
    }


def main() -> None:
    """Evaluate, and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("eval/reports/long-texts"))
    options = parser.parse_args()
    out: Path = options.out
    embedder = Embedder(precision="fp32")
    file = options.data / "squad" / "dev_a.jsonl.gz"
    squad = kept(out / "squad.json", lambda: evaluate_squad(file, embedder, list(SYSTEMS)))
    collections = evaluate_collections(options.data, out, embedder)
    record = {**squad, "collections": collections, **made_with()}
    replace_file(out / "long-texts.json", (json.dumps(record, indent=1) + "\n").encode())
    replace_file(out / "long-texts.md", markdown(record).encode())
    sys.stdout.write(markdown(record))


if __name__ == "__main__":
    main()
