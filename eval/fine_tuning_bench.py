"""Folders, training, scoring and time limit of the runs of `eval/fine_tuning.py`."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fine_tuning_trials import BEFORE, NLI, Trial
from triplet_accuracy import accuracy_by_article

from sbert_search.base.files import replace_file
from sbert_search.base.progress import note
from sbert_search.base.seed import seed_all
from sbert_search.config import to_mapping
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.metrics.correlation import spearman
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.evaluate.similarity import evaluate_sts, unseen_pairs
from sbert_search.evaluate.tasks import find_task
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.train.bi_encoder import BiEncoderRecipe, open_model, train_bi_encoder
from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.log import LOG, read_log
from sbert_search.train.recipe import load_recipe
from sbert_search.train.run import MODEL

STSB_TRAIN = "stsb/train.jsonl.gz"


class OutOfTimeError(Exception):
    """Another run would exceed the time limit."""


@dataclass(frozen=True)
class Clock:
    """The seconds of each run, and a time limit for all runs.

    Attributes:
        file: JSON file of the seconds by run.
        minutes: Limit of the sum over all runs; None: no limit.
    """

    file: Path
    minutes: float | None = None

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every run so far."""
        return json.loads(self.file.read_bytes()) if self.file.exists() else {}

    @contextmanager
    def timing(self, run: str) -> Iterator[None]:
        """Add the time of the ``with`` block to the seconds of a run, even if it is interrupted.

        Raises:
            OutOfTimeError: A run as long as the longest so far would exceed the limit.
        """
        spent = self.seconds()
        needed = sum(spent.values()) + max(spent.values(), default=0.0)
        if self.minutes is not None and needed > 60 * self.minutes:
            raise OutOfTimeError
        note(f"{run}, after {sum(spent.values()) / 60:.1f} minutes of runs")
        start = time.monotonic()
        try:
            yield
        finally:
            spent[run] = spent.get(run, 0.0) + time.monotonic() - start
            replace_file(self.file, json.dumps(spent, indent=1).encode())


@dataclass(frozen=True)
class Bench:
    """Trains and scores the trials of one model.

    Attributes:
        model: Folder or name of the model that trials start from.
        name: Name of the model in reports.
        data: Folder of the data sets.
        work: Folder of all runs.
        clock: Times of the runs, and their limit.
    """

    model: str
    name: str
    data: Path
    work: Path
    clock: Clock

    @cached_property
    def start(self) -> Path:
        """The folder of the model that every trial starts from."""
        return resolve_model(self.model).path

    @cached_property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights of the start model."""
        return read_folder(self.start).weights_sha256()

    def folder(self, trial: Trial, seed: int) -> Path:
        """Return the folder of a run, named by a digest of everything that the run depends on."""
        if trial == BEFORE:
            return self.work / f"before-{self.weights_sha256[:10]}"
        recipe = to_mapping(self._recipe(trial, "start", trial.settings))
        earlier = [self._run_name(each, 0) for each in (trial.after, trial.labelled_by) if each]
        depends_on = [recipe, trial.fresh, self.weights_sha256, *earlier]
        key = json.dumps(depends_on, sort_keys=True, default=str)
        digest = hashlib.sha256(key.encode()).hexdigest()[:10]
        return self.work / f"{trial.recipe or 'raw'}-{digest}" / f"seed-{seed}"

    def found(self, trial: Trial, seed: int, tasks: Sequence[str]) -> dict[str, Any] | None:
        """Return the scores of a run by task; None if the score of a task is missing."""
        files = [self.folder(trial, seed) / f"{task}.json" for task in tasks]
        if not all(file.exists() for file in files):
            return None
        return {task: json.loads(f.read_bytes()) for task, f in zip(tasks, files, strict=True)}

    def measure(self, trial: Trial, seed: int, tasks: Sequence[str]) -> None:
        """Train a run and score it on every task; existing results are kept.

        Raises:
            OutOfTimeError: A result is missing and the time limit is reached.
        """
        if self.found(trial, seed, tasks) is not None:
            return
        folder = self.folder(trial, seed)
        with self.clock.timing(self._run_name(trial, seed)):
            model = self.train(trial, seed)
            for file in (folder / f"{task}.json" for task in tasks):
                if not file.exists():
                    score = self._score(trial, model, file.stem)
                    replace_file(file, json.dumps(score).encode())

    def train(self, trial: Trial, seed: int) -> Path:
        """Return the model of a trial; train it if it does not exist."""
        folder = self.folder(trial, seed)
        folder.mkdir(parents=True, exist_ok=True)
        if trial == BEFORE:
            return self.start
        if (folder / MODEL).is_dir():
            return folder / MODEL
        start = self._random(seed) if trial.fresh else self.start
        if trial.after is not None:
            start = self.train(trial.after, 0)
        settings = [text.replace("@", str(self.data)) for text in trial.settings]
        if trial.labelled_by is not None:
            settings.append(f"data.train={self._labels(trial.labelled_by)}")
        recipe = self._recipe(trial, str(start), [*settings, f"seed={seed}"])
        resume = bool(checkpoints(folder))
        if isinstance(recipe, CrossEncoderRecipe):
            train_cross_encoder(recipe, folder, resume=resume)
        elif trial.recipe is None:
            open_model(recipe).save(folder / MODEL)
        else:
            train_bi_encoder(recipe, folder, resume=resume)
        return folder / MODEL

    def dev_figure(self, trial: Trial) -> float:
        """Return the best dev metric of a trial with seed 0; train that run if it does not exist.

        Raises:
            OutOfTimeError: The run does not exist and the time limit is reached.
        """
        folder = self.folder(trial, 0)
        if not (folder / MODEL).is_dir():
            with self.clock.timing(self._run_name(trial, 0)):
                self.train(trial, 0)
        evaluations = [line for line in read_log(folder / LOG) if line["kind"] == "dev"]
        return float(max(next(iter(line["figures"].values())) for line in evaluations))

    def seconds(self, trial: Trial, seed: int) -> float:
        """Return the seconds of a run, scoring included."""
        return self.clock.seconds().get(self._run_name(trial, seed), 0.0)

    def _run_name(self, trial: Trial, seed: int) -> str:
        return self.folder(trial, seed).relative_to(self.work).as_posix()

    def _recipe(
        self, trial: Trial, start: str, settings: Sequence[str]
    ) -> BiEncoderRecipe | CrossEncoderRecipe:
        named = [f"model={start}"]
        if trial.recipe is None or trial.labelled_by is not None:
            # A placeholder, since the setting is required. A trial without a recipe is not trained
            # and reads no data. For a trial with ``labelled_by``, `train` overrides the placeholder
            # with the file of the other model's cosines, which may not exist yet.
            named.append("data.train=none")
        name, overrides = trial.recipe or "stsb", [*named, *settings]
        if trial.kind == "bi-encoder":
            return load_recipe(BiEncoderRecipe, trial.kind, name, overrides)
        return load_recipe(CrossEncoderRecipe, trial.kind, name, overrides)

    def _random(self, seed: int) -> Path:
        """Save a model that is like the start model, but whose encoder has random weights."""
        folder = self.work / f"random-{self.weights_sha256[:10]}" / f"seed-{seed}"
        if not folder.is_dir():
            model = BiEncoder.load(self.start)
            seed_all(seed, "init")
            model.encoder = Encoder(model.encoder.config)
            model.save(folder)
        return folder

    def _labels(self, trial: Trial) -> Path:
        """Write the pairs of NLI with a bi-encoder's cosines, scaled from 0 to 5 as in STSb."""
        file = self.folder(trial, 0) / "nli-pairs.jsonl"
        if not file.exists():
            embedder = Embedder(self.train(trial, 0))
            pairs = [p for name in NLI for p in read_pairs(self.data / f"{name}.jsonl.gz")]
            first, second = (
                embedder.encode([getattr(pair, name) for pair in pairs])
                for name in ("text1", "text2")
            )
            norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
            scores = 5 * np.clip((first * second).sum(axis=1) / norms, 0, 1)
            rows = (
                {"sentence1": p.text1, "sentence2": p.text2, "score": round(float(score), 4)}
                for p, score in zip(pairs, scores, strict=True)
            )
            replace_file(file, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return file

    def _score(self, trial: Trial, model: Path, name: str) -> dict[str, Any]:
        """Score a model on a task.

        If the recipe trains on STSb, the model is also scored on the task's pairs that are not in
        STSb's training set.
        """
        if name == "triplets":
            articles = self.data / "wikipedia-en-2014/test.jsonl.xz"
            per_article = accuracy_by_article(articles, Embedder(model, precision="fp32"))
            low, high = mean_interval(per_article)
            mean = statistics.fmean(per_article)
            return {"accuracy": mean, "low": low, "high": high, "articles": len(per_article)}
        model_class = Embedder if trial.kind == "bi-encoder" else Reranker
        loaded = model_class(model, precision="fp32")
        task = find_task("sts", name)
        evaluation = evaluate_sts(task, loaded, data=self.data)
        scores = {
            "spearman": evaluation.scores["spearman"],
            "pairs": evaluation.counts["pairs"],
        }
        if "stsb" in (trial.recipe or ""):
            positions, _, _ = unseen_pairs(task, self.data, read_pairs(self.data / STSB_TRAIN))
            predicted, gold = (
                [evaluation.per_item[name][position] for position in positions]
                for name in ("predicted", "gold")
            )
            scores |= {"unseen": spearman(predicted, gold), "n_unseen": len(positions)}
        return scores
