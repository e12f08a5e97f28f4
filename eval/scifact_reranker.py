"""Train a reranker for SciFact without the test claims, and choose its depth and weight.

    python eval/scifact_reranker.py --data DATA

The queries of SciFact are claims. Hybrid search fuses the hits of vectors and of words. The script
has five steps:

1. Index the abstracts. Choose the settings of the fusion on the training claims (5 folds).
2. Train a cross-encoder on pairs (title, abstract) of SciFact and (question, paragraph) of SQuAD,
   with mined negatives. The questions are from the half of SQuAD that no test uses.
3. Divide the training claims into 5 folds. For each fold, continue the training on the claims of
   the other four. The candidates of a claim are its results of hybrid search. Score the candidates
   of the claims of the fold itself, which are held out.
4. From these scores choose the depth (how many results are reranked) and the weight of the
   reranker's score.
5. Continue the training of step 2 on all training claims.

The script takes about two hours on two quiet cores with bf16. Results of finished steps under
--work are kept, and interrupted training resumes. The report has all scores that the choices are
based on. `eval/search_table.py` evaluates the chosen reranker on test data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kept import kept

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.config import to_mapping
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.evaluate.cross_encoders import rerank
from sbert_search.evaluate.metrics.ranking import score_run
from sbert_search.evaluate.retrieval import choose_fusion
from sbert_search.index.index import Index
from sbert_search.records import Qrels, Run
from sbert_search.search.engine import SearchEngine
from sbert_search.search.rerankers import BestWindow, Reranker
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.candidates import judged_candidates
from sbert_search.text.labelled.retrieval import read_qrels, read_queries, read_run, write_run
from sbert_search.train.cross_encoder import CrossEncoderRecipe, train_cross_encoder
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.recipe import load_recipe
from sbert_search.train.run import MODEL

FOLDS = 5
DEPTHS = (10, 20, 50)
WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
SQUAD_EVERY = 3  # every third question of dev_b is used
COMMON = ("max_len=224", "precision=bf16", "checkpoint.keep=1", "checkpoint.every=50")


@dataclass(frozen=True)
class Work:
    """Folders, training and candidates of this script."""

    data: Path
    work: Path
    model: str | None

    @property
    def collection(self) -> Path:
        """The folder of SciFact."""
        return self.data / "scifact"

    @property
    def folds(self) -> Path:
        """Folder of SciFact with further splits, of the training claims.

        The split held-K has the claims of fold K, fit-K has those of the other folds, and all has
        all training claims.
        """
        return self.work / "folds"

    @property
    def run(self) -> Path:
        """TREC run of hybrid search for the training claims."""
        return self.work / "train.trec"

    def split(self) -> None:
        """Write the folds. Claims with consecutive numbers are in different folds."""
        (self.folds / "qrels").mkdir(parents=True, exist_ok=True)
        for table in (*self.collection.glob("corpus.jsonl*"), *self.collection.glob("queries.*")):
            link = self.folds / table.name
            if not link.exists():
                os.symlink(table.resolve(), link)
        qrels = read_qrels(self.collection, "train")
        claims = sorted(qrels, key=int)
        for fold in range(FOLDS):
            held = claims[fold::FOLDS]
            self._write_qrels(f"held-{fold}", qrels, held)
            self._write_qrels(f"fit-{fold}", qrels, [c for c in claims if c not in set(held)])
        self._write_qrels("all", qrels, claims)

    def _write_qrels(self, split: str, qrels: Qrels, claims: Sequence[str]) -> None:
        lines = [f"{c}\t{doc}\t{grade}\n" for c in claims for doc, grade in qrels[c].items()]
        path = self.folds / "qrels" / f"{split}.tsv"
        replace_file(path, ("query-id\tcorpus-id\tscore\n" + "".join(lines)).encode())

    def search(self) -> Any:
        """Choose the fusion, and find the candidates of the training claims by hybrid search."""
        return kept(self.work / "fusion.json", self._choose_fusion)

    def _choose_fusion(self) -> dict[str, Any]:
        embedder = CachedEmbedder(Embedder(self.model, precision="fp32"))
        out = self.work / "index"
        if not (out / "MANIFEST.json").exists():
            Index.build(self.collection, out=out, model=embedder, on_truncate="warn")
        index = Index.open(out)
        qrels = read_qrels(self.collection, "train")
        queries = [query for query in read_queries(self.collection) if query.query_id in qrels]
        choice = choose_fusion(index, embedder, queries, qrels, folds=FOLDS)
        run = SearchEngine(index, embedder).run(
            queries, max(DEPTHS), mode="hybrid", fusion=choice.fusion
        )
        embedder.close()
        write_run(run, self.run)
        return dict(to_mapping(choice))

    def positives(self) -> list[Path]:
        """Write positive pairs: title and abstract, question and paragraph."""
        titles = ((d.title, d.text) for d in _documents(self.collection) if d.title and d.text)
        files = {"titles.jsonl": titles, "questions.jsonl": _questions(self.data)}
        for name, pairs in files.items():
            rows = "".join(json.dumps({"query": q, "passage": p}) + "\n" for q, p in pairs)
            replace_file(self.work / name, rows.encode())
        return [self.work / name for name in files]

    def train(self, name: str, *overrides: str) -> Path:
        """Return a trained model; train it if it does not exist."""
        folder = self.work / name
        if not (folder / MODEL).is_dir():
            recipe = load_recipe(
                CrossEncoderRecipe, "cross-encoder", "relevance", [*COMMON, *overrides]
            )
            train_cross_encoder(recipe, folder, resume=bool(checkpoints(folder)))
        return folder / MODEL

    def on_positives(self) -> Path:
        """Train on the positive pairs with mined negatives; return the model."""
        paths = ", ".join(f'"{path}"' for path in self.positives())
        start = [] if self.model is None else [f"model={self.model}"]
        return self.train(
            "positives",
            *start,
            f"data.train=[{paths}]",
            "mining.negatives=3",
            "mining.last=20",
            "mining.margin=0.0",
            "budget.epochs=1",
            "batching.size=8",
            "optim.lr=1e-4",
        )

    def on_claims(self, name: str, split: str) -> Path:
        """Continue the training on the claims of a split; return the model."""
        return self.train(
            name,
            f"model={self.on_positives()}",
            f"data.train={self.folds}",
            f'data.runs=["{self.run}"]',
            f"data.split={split}",
            "data.depth=15",
            "data.negatives=7",
            "budget.epochs=1",
            "batching.size=8",
            "optim.lr=5e-5",
        )

    def held_out_scores(self, fold: int) -> Run:
        """Return the scores of the candidates of a fold's held-out claims."""
        path = self.work / f"held-{fold}.trec"
        if not path.exists():
            found = judged_candidates(self.folds, self.run, split=f"held-{fold}", depth=max(DEPTHS))
            reranker = BestWindow(Reranker(self.on_claims(f"fold-{fold}", f"fit-{fold}")))
            run = {}
            for claim, docs in rerank(found, reranker).run.items():
                chances = reranker.probabilities(np.array([*docs.values()]))
                run[claim] = dict(zip(docs, chances.tolist(), strict=True))
            write_run(run, path)
        return read_run(path)


def _documents(folder: Path) -> Iterator[Any]:
    return (document for batch in CorpusReader(folder).batches() for document in batch.documents)


def _questions(data: Path) -> Iterator[tuple[str, str]]:
    with gzip.open(data / "squad" / "dev_b.jsonl.gz", "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % SQUAD_EVERY == 0:
                row = json.loads(line)
                yield row["question"], row["context"]


def choose(found: Run, reranked: Run, qrels: Qrels) -> dict[str, Any]:
    """Choose the depth and weight with the best mean nDCG@10 over all training claims.

    Args:
        found: Results of hybrid search for each claim.
        reranked: The reranker's scores of these results. The reranker that scored a claim was not
            trained on it.
        qrels: Judgements of the training claims.

    Returns:
        The choice and the scores. ``held out`` is the mean score if the depth and weight for the
        claims of a fold are those that are best on the other folds.
    """
    claims = list(reranked)
    settings = [(depth, weight) for depth in DEPTHS for weight in WEIGHTS]
    judged = {claim: qrels[claim] for claim in claims}

    def values(run: Run) -> list[float]:
        return list(score_run(run, judged, ["nDCG@10"])["nDCG@10"].values())

    table = np.array(
        [values({c: _mixed(found[c], reranked[c], *s) for c in claims}) for s in settings]
    )
    fold = np.array([sorted(qrels, key=int).index(claim) % FOLDS for claim in claims])
    best = [int(table[:, fold != f].mean(axis=1).argmax()) for f in range(FOLDS)]
    names = [f"depth {depth}, weight {weight}" for depth, weight in settings]
    depth, weight = settings[int(table.mean(axis=1).argmax())]
    return {
        "depth": depth,
        "weight": weight,
        "scores": dict(zip(names, table.mean(axis=1).tolist(), strict=True)),
        "held out": float(table[np.array(best)[fold], np.arange(len(claims))].mean()),
        "hybrid alone": statistics.fmean(values({c: found[c] for c in claims})),
    }


def _mixed(
    found: Mapping[str, float], scores: Mapping[str, float], depth: int, weight: float
) -> dict[str, float]:
    """Order the first candidates by a weighted sum of both scores; the rest keeps its order.

    One score is from hybrid search (``found``), the other a probability from the reranker
    (``scores``).
    """
    ids = list(found)
    first = ids[:depth]
    before, after = (np.array([each[doc_id] for doc_id in first]) for each in (found, scores))
    total = weight * after + (1 - weight) * before
    order = [first[position] for position in np.argsort(-total, kind="stable")] + ids[depth:]
    return {doc_id: -float(rank) for rank, doc_id in enumerate(order)}


def markdown(record: Mapping[str, Any]) -> str:
    """Write the scores that the choices were based on."""
    fusion, choice = record["fusion"], record["reranking"]
    lines = [
        "# A reranker for SciFact: choices on the training claims",
        "",
        f"nDCG@10 over {record['claims']} claims; no test claim was read.",
        "",
        f"- fusion: {fusion['fusion']['method']}, dense weight {fusion['fusion']['dense_weight']}; "
        f"held out {fusion['held_out']:.4f}, by default {fusion['default']:.4f}",
        f"- hybrid search alone: {choice['hybrid alone']:.4f}",
        f"- reranked at depth {choice['depth']} with weight {choice['weight']}, each claim by what "
        f"the other folds chose and by a model that never saw it: {choice['held out']:.4f}",
        "",
        "| depth and weight of the reranker | nDCG@10 |",
        "|---|--:|",
        *(f"| {name} | {score:.4f} |" for name, score in choice["scores"].items()),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Train, choose and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--model", help="bi-encoder that searches and is trained further")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/scifact-reranker"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/search"))
    options = parser.parse_args()
    work = Work(options.data, options.work, options.model)
    work.split()
    fusion = work.search()
    reranked: dict[str, Mapping[str, float]] = {}
    for fold in range(FOLDS):
        note(f"Fold {fold + 1} of {FOLDS}")
        reranked |= work.held_out_scores(fold)
    qrels = read_qrels(work.collection, "train")
    choice = choose(read_run(work.run), reranked, qrels)
    work.on_claims("final", "all")
    record = {"claims": len(reranked), "fusion": fusion, "reranking": choice, **made_with()}
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / "choices.json", (json.dumps(record, indent=1) + "\n").encode())
    replace_file(options.out / "choices.md", markdown(record).encode())
    sys.stdout.write(markdown(record))


if __name__ == "__main__":
    main()
