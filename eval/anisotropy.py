"""Measure anisotropy by layer, and test the remedy that dev data choose.

    python eval/anisotropy.py NAME=MODEL [NAME=MODEL ...] --data DATA --report eval/reports/analysis

NAME is the model's name in the report. The geometry is measured over sentences of MNLI, and the
remedies are fitted on one half of these. For STS and for retrieval, the remedy with the best score
on dev data is chosen: the dev file of the STS benchmark, and the train claims of SciFact. If it is
better than no remedy there, its scores on the test files are compared with those without one.

Each result is kept below --work, and is not measured again. The report has `anisotropy.json` and
`anisotropy.svg` for each model in a folder of its name, and `report.md` and `report.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kept import kept

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.comparison import compare_runs
from sbert_search.evaluate.report import write_reports
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.lab.anisotropy.analyze import UNCHANGED, AnisotropyReport, analyze_anisotropy
from sbert_search.lab.anisotropy.remedies import LinearMap, MappedEmbedder
from sbert_search.lab.inputs import texts_of
from sbert_search.search.options import SearchOptions
from sbert_search.text.documents import CorpusReader, FieldNames

SENTENCES = "mnli/train_subset.jsonl.gz"
STS_DEV, STS_TEST = "stsb-dev", "stsb"
RETRIEVAL = "scifact"
MOST_TEXTS = 5000
HIGH, DOMINANT = 0.9, 5  # a cosine; number of the largest dimensions whose shares are summed


def main() -> None:
    """Measure all models and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/anisotropy"))
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--most-texts", type=int, default=MOST_TEXTS)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for given in options.models:
        name, _, model = given.partition("=")
        measure = partial(measured, name, model, options)
        figures[name] = kept(options.work / f"{name}.json", measure)
    record = {"models": figures, **made_with()}
    options.report.mkdir(parents=True, exist_ok=True)
    shown = markdown(figures)
    replace_file(options.report / "report.json", (json.dumps(record, indent=1) + "\n").encode())
    replace_file(options.report / "report.md", shown.encode())
    sys.stdout.write(shown)


def measured(name: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Analyse a model, choose a remedy for each kind of task, and compare it on the test file."""
    data: Path = options.data
    sentences = CorpusReader([data / SENTENCES], fields=FieldNames(text="sentence1"))
    report = analyze_anisotropy(
        model,
        texts_of(sentences),
        sts=[STS_DEV],
        retrieval=[data / RETRIEVAL],
        split="train",
        data=data,
        most_texts=options.most_texts,
    )
    replace(report, model=name).write(options.report / name)
    dev = {task: scores_of(report, task) for task in report.main_metrics}
    tests = {STS_DEV: STS_TEST, RETRIEVAL: RETRIEVAL}
    tested = {}
    with closing(CachedEmbedder(Embedder(model, precision="fp32"))) as embedder:
        for task, scores in dev.items():
            best = max(scores, key=lambda remedy: scores[remedy])
            if best != UNCHANGED:
                fitted = report.remedies[best]
                work = options.work / name / tests[task]
                tested[tests[task]] = compared(embedder, best, fitted, tests[task], data, work)
    layers = [
        {
            "cosine": layer.token_cosine,
            "high": layer.high_token_cosines,
            "dominant": sum(list(layer.top_dimensions.values())[:DOMINANT]),
            "sentence_cosine": layer.sentence_cosine,
        }
        for layer in report.layers
    ]
    high = report.sentences[0].high_cosines
    return {"layers": layers, "high_sentences": high, "dev": dev, "test": tested}


def scores_of(report: AnisotropyReport, task: str) -> dict[str, float]:
    """Return the main score of a task by remedy."""
    metric = report.main_metrics[task]
    return {each.remedy: each.scores[task][metric] for each in report.sentences}


def compared(
    embedder: CachedEmbedder, remedy: str, fitted: LinearMap, task: str, data: Path, work: Path
) -> dict[str, Any]:
    """Compare the vectors after a remedy with the unchanged ones on a task."""
    found = find_task("sts" if task == STS_TEST else "retrieval", task)
    folders = {UNCHANGED: embedder, remedy: MappedEmbedder(embedder, remedy, fitted)}
    for name, each in folders.items():
        dense = SearchOptions(mode="dense")
        evaluation = (
            evaluate_sts(found, each, data=data)
            if found.kind == "sts"
            else evaluate_retrieval(found, each, data=data, search=dense)
        )
        write_reports([evaluation], work / name)
    (comparison,) = compare_runs(work / UNCHANGED, work / remedy)
    difference = comparison.difference
    return {
        "remedy": remedy,
        "metric": comparison.metric,
        "without": comparison.first,
        "with": comparison.second,
        "low": difference.low,
        "high": difference.high,
        "p": difference.p_value,
    }


def markdown(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the figures of all models as tables."""
    return "\n".join([*layer_lines(figures), "", *dev_lines(figures), "", *test_lines(figures), ""])


def layer_lines(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the layers."""
    yield "# Anisotropy by layer"
    yield ""
    yield (
        f"Mean cosine of pairs of tokens, share of pairs with a cosine of at least {HIGH}, share "
        f"of the {DOMINANT} largest dimensions in the mean cosine, and mean cosine of sentences."
    )
    yield ""
    yield f"| model | layer | tokens | >= {HIGH} | {DOMINANT} dimensions | sentences |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, each in figures.items():
        for number, layer in enumerate(each["layers"]):
            yield (
                f"| {name} | {number} | {layer['cosine']:.3f} | {layer['high']:.1%} "
                f"| {layer['dominant']:.0%} | {layer['sentence_cosine']:.3f} |"
            )
    yield ""
    yield f"Share of pairs of sentence vectors with a cosine of at least {HIGH}:"
    yield ""
    yield from (f"- {name}: {each['high_sentences']:.1%}" for name, each in figures.items())


def dev_lines(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the scores that choose a remedy."""
    remedies: Sequence[str] = list(next(iter(next(iter(figures.values()))["dev"].values())))
    yield "# Scores on dev data, by remedy"
    yield ""
    yield f"| model | task | {' | '.join(remedies)} |"
    yield f"|---|---|{'--:|' * len(remedies)}"
    for name, each in figures.items():
        for task, scores in each["dev"].items():
            row = " | ".join(f"{100 * scores[remedy]:.2f}" for remedy in remedies)
            split = "train claims" if task == RETRIEVAL else "dev"
            yield f"| {name} | {task.removesuffix('-dev')}, {split} | {row} |"


def test_lines(figures: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the chosen remedies on the test files."""
    yield "# The chosen remedy on the test file"
    yield ""
    yield "| model | task | remedy | without | with | 95 % interval of the gain | p |"
    yield "|---|---|---|--:|--:|--:|--:|"
    for name, each in figures.items():
        for task, test in each["test"].items():
            yield (
                f"| {name} | {task} {test['metric']} | {test['remedy']} "
                f"| {100 * test['without']:.2f} | {100 * test['with']:.2f} "
                f"| {100 * test['low']:+.2f} to {100 * test['high']:+.2f} | {test['p']:.4f} |"
            )
    yield ""
    yield "A model and task without a line: no remedy was better on dev data."


if __name__ == "__main__":
    main()
