"""Measure models on the STS benchmark in nine languages and on XQuAD-R in six.

    python eval/several_languages.py --data DATA --model NAME=FOLDER [--prompt NAME=PROMPT]

STSb: Spearman correlation of the cosine with the scores of the English pairs, whose texts were
translated by machine. --prompt names the prompt of the model that both texts of a pair get, such as
`query` of multilingual-e5.

XQuAD-R: the sentences of 240 paragraphs, which are translations of each other; a question has one
relevant sentence. Within a language, questions and sentences are in that language. `en>de`: English
questions, German sentences. `en+de`: the sentences of both languages together, questions of both,
and both answers are relevant, as in LAReQA (Roy et al. 2020, arXiv:2004.05484). The folders of the
last two are written under --work. Lexical search is as `index build` makes it: the language of stop
words and stems is guessed.

Published scores are those of MTEB's results store. The exit code is 1 if a score is farther from
the published one than `TOLERANCES` allows. Finished steps are kept under --work.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from kept import kept
from squad_wikipedia import rows_of, write_lines

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import EvalTask, find_task
from sbert_search.search.options import SearchMode, SearchOptions
from sbert_search.text.labelled.retrieval import read_qrels

STS = (
    *("stsb", "stsb-de", "stsb-es", "stsb-fr", "stsb-it"),
    *("stsb-pl", "stsb-pt", "stsb-ru", "stsb-zh"),
)
WITHIN = ("en", "de", "es", "ru", "zh", "ar")
ACROSS = (("en", "de"), ("en", "zh"))
MODES: tuple[SearchMode, ...] = ("dense", "lexical", "hybrid")
_MINILM = (82.03, 62.4, 61.6, 64.9, 59.2, 56.4, 61.6, 55.6, 39.7)
_E5 = (None, 78.9, 80.7, 79.3, 78.3, 73.7, 77.7, 77.8, 78.0)
PUBLISHED: Mapping[str, Sequence[float | None]] = {
    "all-MiniLM-L6-v2": _MINILM,
    "multilingual-e5-small-q4": _E5,
    "all-mpnet-base-v2": (83.42,),
}
TOLERANCES = {  # of published scores, in points; the weights of e5 were rounded to four bits
    "all-MiniLM-L6-v2": 0.3,
    "multilingual-e5-small-q4": 3.0,
    "all-mpnet-base-v2": 0.05,
}


def main() -> None:
    """Evaluate each model, write the report, and exit with 1 if a score is not as published."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--prompt", action="append", default=[], metavar="NAME=PROMPT")
    parser.add_argument("--sts-only", action="append", default=[], metavar="NAME")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/several-languages"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/several-languages"))
    options = parser.parse_args()
    prompts = dict(one.split("=", 1) for one in options.prompt)
    models: dict[str, dict[str, Any]] = {}
    for given in options.model:
        name, _, folder = given.partition("=")
        prompted = opened(folder, prompts.get(name))
        tasks = STS[: len(PUBLISHED.get(name, STS))]
        with closing(CachedEmbedder(prompted)) as embedder:
            models[name] = {
                "weights_sha256": embedder.identity.weights_sha256,
                "prompt": prompted.description.prompt(None),
                "sts": {task: sts(options, name, embedder, task) for task in tasks},
            }
        if name in options.sts_only:
            continue
        # Questions and sentences get the prompts of queries and documents, if the model has them.
        with closing(CachedEmbedder(opened(folder, None))) as embedder:
            models[name]["retrieval"] = retrieval(options, name, embedder)
    report = {"models": models, "made_with": made_with()}
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    replace_file(options.out / "README.md", markdown(models).encode())
    sys.stdout.write(markdown(models))
    sys.exit(any(row["holds"] is False for one in models.values() for row in one["sts"].values()))


def opened(folder: str, prompt: str | None) -> Embedder:
    """Open a model on the CPU in fp32, as published scores were computed."""
    return Embedder(folder, device="cpu", precision="fp32", default_prompt_name=prompt)


def sts(
    options: argparse.Namespace, name: str, embedder: CachedEmbedder, task: str
) -> dict[str, Any]:
    """Return the correlation on a task, and the published one."""

    def evaluate() -> float:
        note(f"{name}: {task}")
        found = evaluate_sts(find_task("sts", task), embedder, data=options.data)
        return 100 * found.main_score

    score = kept(options.work / name / f"{task}.json", evaluate)
    published = dict(zip(STS, PUBLISHED.get(name, ()), strict=False)).get(task)
    holds = None if published is None else abs(score - published) <= TOLERANCES[name]
    return {"score": score, "published": published, "holds": holds}


def retrieval(
    options: argparse.Namespace, name: str, embedder: CachedEmbedder
) -> dict[str, dict[str, float]]:
    """Return nDCG@10 by collection and mode; lexical search is within a language only."""
    tasks = {language: find_task("retrieval", f"xquad-r-{language}") for language in WITHIN}
    for asked, read in ACROSS:
        for both in (False, True):
            label = f"{asked}{'+' if both else '>'}{read}"
            folder = options.work / "xquad-r" / f"{asked}-{'and' if both else 'to'}-{read}"
            write_across(options.data / "xquad-r", folder, asked, read, both=both)
            path = folder.resolve()
            tasks[label] = EvalTask(name=folder.name, kind="retrieval", path=path, depth=100)
    scores: dict[str, dict[str, float]] = {}
    for label, task in tasks.items():
        modes = MODES if label in WITHIN else MODES[:1]
        scores[label] = {
            mode: kept(
                options.work / name / f"{task.name}-{mode}.json",
                partial(ndcg, task, embedder, options.data, mode),
            )
            for mode in modes
        }
    return scores


def ndcg(task: EvalTask, embedder: CachedEmbedder, data: Path, mode: SearchMode) -> float:
    """Search a collection in a mode."""
    note(f"{task.name}, {mode}")
    search = SearchOptions(mode=mode)
    return evaluate_retrieval(task, embedder, data=data, search=search).main_score


def write_across(data: Path, folder: Path, asked: str, read: str, *, both: bool) -> None:
    """Write a BEIR folder of questions in one language and sentences in another, or of both each.

    The ids of translations are equal but for the language before the first hyphen.
    """
    if folder.exists():
        return
    languages = [asked, read]
    sentences = [rows_of(data / one / "corpus.jsonl.gz") for one in languages[not both :]]
    questions = [rows_of(data / one / "queries.jsonl.gz") for one in languages[: 1 + both]]
    relevant: dict[str, list[str]] = {}  # sentences by the number of the question
    for one in languages[not both :]:
        for query_id, grades in read_qrels(data / one, "test").items():
            relevant.setdefault(query_id.partition("-")[2], []).extend(grades)

    def judged() -> Iterator[str]:
        yield "query-id\tcorpus-id\tscore"
        for one in languages[: 1 + both]:
            for number, sentence_ids in relevant.items():
                yield from (f"{one}-{number}\t{sentence}\t1" for sentence in sentence_ids)

    part = folder.with_suffix(".part")
    (part / "qrels").mkdir(parents=True)
    write_lines(part / "corpus.jsonl", map(json.dumps, chain(*sentences)))
    write_lines(part / "queries.jsonl", map(json.dumps, chain(*questions)))
    write_lines(part / "qrels" / "test.tsv", judged())
    part.rename(folder)


def markdown(models: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    tasks = [task for task in STS if any(task in one["sts"] for one in models.values())]
    rows = []
    for name, one in models.items():
        values = [one["sts"].get(task) for task in tasks]
        prompt = f", prompt `{one['prompt']}`" if one["prompt"] else ""
        rows.append([name + prompt, *(f"{v['score']:.2f}" if v else "" for v in values)])
        published = [v and v["published"] for v in values]
        rows.append(["published", *(f"{value:g}" if value else "" for value in published)])
    found = [(name, one["retrieval"]) for name, one in models.items() if "retrieval" in one]
    collections = list(found[0][1]) if found else []
    shown = [
        [f"{name}, {mode}", *(f"{s[c][mode]:.3f}" if mode in s[c] else "" for c in collections)]
        for name, s in found
        for mode in (MODES if name == found[0][0] else ("dense", "hybrid"))
    ]
    return "\n".join(
        [
            "# Several languages",
            "",
            "Written by `eval/several_languages.py`. STSb: Spearman correlation x 100.",
            "",
            *_table(["model", *tasks], rows),
            "",
            "XQuAD-R: nDCG@10. Lexical search is the same for all models.",
            "",
            *_table(["model", *collections], shown),
            "",
        ]
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
