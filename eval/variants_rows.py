"""Measure single claims about pre-training objectives, beside the table of `analyze variants`.

    python eval/variants_rows.py eval/variants/mini.toml --data DATA --report eval/reports/variants

It uses the corpus, size, budget and settings of the recipe, one seed after the other:

- heads: a BERT with NSP and a BERT with SOP, each tested on the examples of both. In both, the
  positive class is a pair whose second segment does not follow the first.
- distillation: a student of the first BERT with all three losses, and without each of them.
- ELECTRA: the discriminator's loss over all tokens, and over the masked ones only.
- static: mean and [CLS] of the last states, and the mean of the token embeddings, on STS.
- generation: words that the first BERT puts one after the other behind a beginning.

Each result is kept as a file in the folder `rows` below --report, and is not measured again. An
interrupted training resumes below --work. Results of another recipe are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from kept import kept

from sbert_search.base.distributed import join_ranks
from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.config import from_mapping, to_mapping, with_overrides
from sbert_search.evaluate.baselines import open_baselines
from sbert_search.evaluate.metrics.significance import mean_interval
from sbert_search.evaluate.perplexity import evaluate_masked
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.lab.variants.measuring import Measuring
from sbert_search.lab.variants.recipe import (
    VariantsRecipe,
    load_variants,
    pretrain_recipe,
    with_data,
)
from sbert_search.lab.variants.run import claim
from sbert_search.models.pretraining import MaskedLanguageModel, fill_mask
from sbert_search.text.documents import CorpusReader, FieldNames
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.pretrain import PretrainRecipe, pretrain
from sbert_search.train.pretraining_data import dev_evaluation, prepare
from sbert_search.train.pretraining_objectives import MaskedObjective

PairKind = Literal["nsp", "sop"]
PAIRS: tuple[PairKind, ...] = ("nsp", "sop")
WITHOUT = {"all terms": "", "no soft": "soft", "no mlm": "mlm", "no cosine": "cosine"}
BEGINNINGS = ("the city was", "in the morning", "the king of")
WORDS = 12  # words that are put behind a beginning


class Rows:
    """Trains and measures the rows of one seed."""

    def __init__(
        self, recipe: VariantsRecipe, data: Path, work: Path, results: Path, seed: int
    ) -> None:
        self.recipe, self.data, self.seed = with_data(recipe, data), data, seed
        self.work, self.results = work, results

    def all(self) -> dict[str, Any]:
        """Return all figures, by row."""
        figures: dict[str, Any] = {}
        for head in PAIRS:
            for kind in PAIRS:
                name = f"{head} head on {kind} examples, accuracy"
                figures[name] = self.kept(name, partial(self.pair_accuracy, head, kind))
        for name, term in WITHOUT.items():
            figures |= self.kept(f"distilled, {name}", partial(self.distilled, name, term))
        for at in ("tokens", "masked"):
            figures |= self.kept(f"electra {at}", partial(self.electra, at))
        figures |= self.kept("static", self.static)
        return figures

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a result; compute it if it is not kept."""
        return kept(self.results / f"{name}-{self.seed}.json", make)

    def settings(
        self, family: str, overrides: Sequence[str], teacher: Path | None
    ) -> PretrainRecipe:
        """Make the recipe of a pre-training."""
        made = pretrain_recipe(
            self.recipe,
            family,
            self.seed,
            vocabulary=Measuring(self.recipe, self.work, self.data, "auto").vocabulary(),
            tokens=self.work / "tokens",
            teacher=teacher,
        )
        values = with_overrides(to_mapping(made), ["checkpoint.keep=1", *overrides])
        return from_mapping(PretrainRecipe, values)

    def model(self, name: str, family: str, *overrides: str, teacher: Path | None = None) -> Path:
        """Return the last model of a pre-training, which is trained if it does not exist."""
        folder = self.work / "runs" / f"{name.replace(' ', '-')}-{self.seed}"
        recipe = self.settings(family, overrides, teacher)

        def run() -> str:
            done = pretrain(recipe, folder, resume=bool(checkpoints(folder)))
            return str(done.last / "model")

        return Path(kept(folder.with_suffix(".json"), run))

    def bert(self, head: PairKind = "nsp") -> Path:
        """Return a BERT with a pair head."""
        return self.model(f"bert-{head}", "bert", f"segments.kind={head}")

    def pair_accuracy(self, head: PairKind, kind: PairKind) -> float:
        """Return the accuracy of a BERT's pair head on held-out examples of a kind."""
        recipe = self.settings("bert", [f"segments.kind={kind}"], None)
        loaded = MaskedLanguageModel.load(self.bert(head)).eval()
        with join_ranks() as ranks:
            corpora = prepare(
                recipe.data,
                loaded.tokenizer,
                recipe.segments,
                recipe.mask,
                out=self.work,
                seed=self.seed,
                ranks=ranks,
            )
        assert corpora.dev is not None
        evaluate = dev_evaluation(corpora.dev, MaskedObjective(kind), 2000, segments=True)
        with torch.no_grad():
            return float(evaluate(loaded)[f"{kind}_accuracy"])

    def distilled(self, name: str, term: str) -> dict[str, float]:
        """Return the held-out loss and the STS of a student of BERT without a term of its loss."""
        # Not every student reports an MLM loss, by which the best checkpoint is chosen.
        settings = ["evaluation.figure=mlm_accuracy", "evaluation.higher_is_better=true"]
        settings += [f"objective.{term}_weight=0"] if term else []
        model = self.model(f"distil-{name}", "distilbert", *settings, teacher=self.bert())
        reader = CorpusReader(self.recipe.held_out, fields=FieldNames(text=self.recipe.text_field))
        loaded = MaskedLanguageModel.load(model).eval()
        loss = evaluate_masked(loaded, reader, max_len=self.recipe.max_len).loss
        return {f"distilled, {name}: held-out MLM loss": loss} | self.sts(
            f"distilled, {name}", model
        )

    def electra(self, at: str) -> dict[str, float]:
        """Return the STS of an ELECTRA that learns from all tokens or from the masked ones."""
        model = self.model(f"electra-{at}", "electra", f"objective.replaced_at={at}")
        return self.sts(f"electra, {at}", model)

    def sts(self, name: str, model: Path) -> dict[str, float]:
        """Return the correlation of the mean of the last states, by task."""
        mean = {"mean of the last states": open_baselines(model)["mean of the last states"]}
        return self._sts(name, mean)

    def static(self) -> dict[str, float]:
        """Return the correlations of BERT's [CLS], mean and token embeddings, by task."""
        return self._sts("bert", open_baselines(self.bert()))

    def generated(self) -> dict[str, str]:
        """Return what BERT writes behind each of a few beginnings."""
        model = MaskedLanguageModel.load(self.bert()).eval()
        return {beginning: generated(model, beginning) for beginning in BEGINNINGS}

    def _sts(self, name: str, embedders: Any) -> dict[str, float]:
        tasks = [find_task("sts", task) for task in self.recipe.sts]
        return {
            f"{name}: {task.name} {task.main_metric}, {pooled}": evaluate_sts(
                task, embedder, data=self.data
            ).main_score
            for task in tasks
            for pooled, embedder in embedders.items()
        }


def generated(model: MaskedLanguageModel, beginning: str) -> str:
    """Put the most probable word behind a text, again and again, as a decoder would."""
    text = beginning
    for _ in range(WORDS):
        text = fill_mask(model, f"{text} [MASK]", k=1)[0].text
    return text


def main() -> None:
    """Measure all rows and write their report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/variants-rows"))
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    recipe, results = load_variants(options.recipe), options.report / "rows"
    for folder in (options.work, results):
        claim(folder, recipe)
    rows = [
        Rows(recipe, options.data, options.work, results, seed) for seed in range(options.seeds)
    ]
    by_seed = [row.all() for row in rows]
    figures = {name: [own[name] for own in by_seed] for name in by_seed[0]}
    texts = rows[0].kept("generated", rows[0].generated)
    record = {"figures": figures, "generated": texts, **made_with()}
    lines = ["# Single claims", "", "| figure | mean | 95 % interval |", "|---|--:|--:|"]
    for name, values in figures.items():
        low, high = mean_interval(values)
        interval = f"{low:.4f} to {high:.4f}" if len(values) > 1 else "one seed"
        lines.append(f"| {name} | {sum(values) / len(values):.4f} | {interval} |")
    lines += ["", "Words put one after the other, each the most probable:", ""]
    lines += [f"- {text}" for text in texts.values()]
    shown = "\n".join(lines) + "\n"
    replace_file(options.report / "rows.json", (json.dumps(record, indent=1) + "\n").encode())
    replace_file(options.report / "rows.md", shown.encode())
    sys.stdout.write(shown)


if __name__ == "__main__":
    main()
