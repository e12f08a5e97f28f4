"""Train an encoder and a static table, of at most 10 and 8 million parameters, from raw text.

    python eval/small_encoder.py --data DATA [--peer-python PYTHON] [--quick]
    python eval/small_encoder.py --data DATA --teacher all-mpnet-base-v2 --texts 100000 \
        --vocabulary 10000 --work eval/runs/small-encoder-mpnet

Texts of Wikipedia, NLI pairs and captions are written, without those that stand in a set of STS on
which the models are chosen or measured; no pair of STS is trained on. A vocabulary is learned from
them, and the teacher embeds them. Then, for each seed:

    table     a static table for the vocabulary learns the teacher's vectors
    pretrain  a BERT, whose word embeddings start from the table, predicts masked words
    distil    this BERT learns the teacher's vectors
    nli       it ranks entailed hypotheses above others

The model of `distil` or that of `nli` is chosen by STSb dev and the training claims of SciFact.
The chosen model and the table are then scored on the test sets. The models in the teacher's space,
those of `distil` and the tables, also embed the queries of an index that the teacher made.
model2vec's `distill` is measured beside them if PYTHON has it.

Finished steps are kept under --work, and training that was stopped goes on from its last
checkpoint. --set STEP.NAME=VALUE changes a setting of a step, such as distil.budget.epochs=2.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from timeit import timeit
from typing import Any

import torch
from kept import kept
from query_models import held_out, measured, training_texts
from safetensors.torch import load_file
from squad_wikipedia import rows_of

from sbert_search import (
    BiEncoderRecipe,
    Embedder,
    PretrainRecipe,
    load_recipe,
    pretrain,
    train_bi_encoder,
)
from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.base.processor import usable_cores
from sbert_search.base.progress import note
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.search.options import SearchOptions
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.retrieval import fold_case_and_space
from sbert_search.text.tokens.wordpiece import BATCH_ROWS, VocabularySettings, train_tokenizer
from sbert_search.train.data.examples import DataConfig, read_examples
from sbert_search.train.data.mining import embed_by_teacher
from sbert_search.train.data.text_dataset import arrange
from sbert_search.train.pretrain import build

STS = ("stsb", "sts12-no-msrvid", "sts13", "sts14", "sts15")
STS_FILES = ("stsb/dev", "stsb/test", "sts12/test", "sts13/test", "sts14/test", "sts15/test")
NLI = ("snli/train_subset_18k", "snli/train_subset_2k", "mnli/train_subset", "cad-nli/train")
EVERY = 10**6  # more texts than `training_texts` has
SPREAD = 0.05  # standard deviation of the word embeddings that start from a table
LICENCES = {
    "Wikipedia, 2014": "CC BY-SA 3.0",
    "SNLI, parts": "CC BY-SA 4.0",
    "MultiNLI, part": "several, by genre (Williams et al. 2018)",
    "CAD-NLI and MPE, with captions of Flickr30k": "not stated",
    "Flickr8k captions": "not stated in the copy; non-commercial research",
    "STSb dev, to choose by": "scores CC BY-SA 4.0, each text source under its own terms",
    "SciFact's training claims, to choose by": "claims CC BY 4.0, abstracts ODC-By 1.0",
}
# Recipe and settings of each step. One AVX2 core trains these 4 layers at about 1,800 tokens a
# second, so each text is read once. `distil` gets most of the time, since its targets say more than
# masked words. `pretrain` is for the attention and the positions: few texts of `distil` are as long
# as the 256 tokens that the teacher reads.
STEPS = {
    "table": ("static", "evaluation.every=1000 checkpoint.every=1000"),
    "pretrain": (
        "bert",
        """size=mini model.max_positions=256 model.pooler=false model.hidden_dropout=0.0
        model.attention_dropout=0.0 segments.kind=full-sentences segments.max_len=256
        mask.static=false budget.tokens=4_000_000 batching.size=16 schedule.warmup=0.06
        optim.lr=1e-3 optim.beta2=0.98 optim.eps=1e-6 data.dev_examples=64
        evaluation.every=100 checkpoint.every=100""",
    ),
    "distil": (
        "distill",
        """budget.epochs=1 batching.size=64 optim.lr=5e-4 optim.eps=1e-10 schedule.warmup=0.05
        evaluation.every=500 checkpoint.every=250""",
    ),
    "nli": ("mnrl-nli", "budget.epochs=2 optim.lr=1e-4 evaluation.every=50 checkpoint.every=50"),
}
QUICK = """table.budget.epochs=2 table.evaluation.every=20 table.checkpoint.every=10
    pretrain.model.layers=2 pretrain.budget.tokens=200_000 pretrain.checkpoint.every=10
    distil.evaluation.every=30 distil.checkpoint.every=10
    nli.data.limit=1500 nli.budget.epochs=1 nli.evaluation.every=10 nli.checkpoint.every=5"""
MODEL2VEC = """
import sys, model2vec
from model2vec.distill import distill
distill(model_name=sys.argv[1]).save_pretrained(sys.argv[2])
print(model2vec.__version__)
"""


def main() -> None:
    """Write the texts, train with each seed, choose, measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--teacher", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=300_000, help="that the teacher embeds")
    parser.add_argument("--articles", type=int, default=9_000, help="of Wikipedia, to pre-train on")
    parser.add_argument("--vocabulary", type=int, default=20_000, help="pieces")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="SETTING")
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--peer-python", default=sys.executable, help="Python with model2vec")
    parser.add_argument("--work", type=Path, default=Path("eval/runs/small-encoder"))
    parser.add_argument("--out", type=Path, default=Path("eval/reports/small-encoder"))
    options = parser.parse_args()
    if bad := [each for each in options.settings if each.partition(".")[0] not in STEPS]:
        parser.error(f"--set {bad[0]}: it begins with no step; the steps are {', '.join(STEPS)}.")
    options.sts, options.collection = STS, "scifact"
    if options.quick:
        options.texts, options.articles, options.vocabulary = 6_000, 300, 4_000
        options.settings = [*QUICK.split(), *options.settings]
        options.sts, options.collection = STS[:1], "xquad-r-en"
    named = ("texts", "articles", "vocabulary", "settings", "collection")
    settings = {"teacher": Path(options.teacher).name} | {n: getattr(options, n) for n in named}
    if (old := kept(options.work / "settings.json", lambda: settings)) != settings:
        sys.exit(f"{options.work} has results of {old}; use another folder for --work.")
    steps: dict[str, Callable[[Namespace], float | None]]
    steps = {"texts": write_texts, "vocabulary": learn_words, "teacher": teach}
    for seed, step in product(range(options.seeds), STEPS):
        steps[f"{step}-{seed}"] = partial(train, step=step, seed=seed)
    minutes = {
        name: kept(options.work / f"{name}.json", partial(timed, name, run, options))
        for name, run in steps.items()
    }
    report = {"settings": settings, **measure(options), "minutes": minutes}
    write(report | {"made_with": made_with()}, options.out / settings["teacher"])


def timed(name: str, run: Callable[[Namespace], float | None], options: Namespace) -> float:
    """Run a step and return its minutes; of training that was stopped, those of all its steps."""
    note(name)
    start = time.monotonic()
    return max(run(options) or 0.0, (time.monotonic() - start) / 60)


def write_texts(options: Namespace) -> None:
    """Write texts, NLI pairs and articles, without texts that stand in a set of STS."""
    data = options.data
    taken: set[str] = set()
    for row in _rows(data, STS_FILES):
        taken |= {fold_case_and_space(row["sentence1"]), fold_case_and_space(row["sentence2"])}
    texts = dict.fromkeys(chain(captions(data), training_texts(data, EVERY)))
    free = [text for text in texts if fold_case_and_space(text) not in taken]
    random.Random(0).shuffle(free)
    pairs = (
        row
        for row in _rows(data, NLI)
        if not taken & {fold_case_and_space(row[f"sentence{n}"]) for n in (1, 2)}
    )
    wikipedia = (data / f"wikipedia-en-2014/train-{n}.jsonl.xz" for n in range(5))
    articles = ({"text": row["text"]} for path in wikipedia for row in rows_of(path))
    files: dict[str, Iterable[str]] = {
        "texts.txt": free[: options.texts],
        "articles.jsonl": map(json.dumps, islice(articles, options.articles)),
        "nli.jsonl": map(json.dumps, pairs),
    }
    for name, lines in files.items():
        replace_file(options.work / name, "".join(f"{line}\n" for line in lines).encode())


def captions(data: Path) -> Iterator[str]:
    """Yield picture captions, and the premises and hypotheses of MPE and CAD-NLI."""
    groups = chain(
        (row["captions"] for row in _rows(data, ["flickr8k-captions/captions"])),
        ([*row["premises"], row["sentence2"]] for row in _rows(data, ["mpe/train"])),
        ([row["sentence1"], row["sentence2"]] for row in _rows(data, ["cad-nli/train"])),
    )
    return (" ".join(text.split()) for group in groups for text in group)


def _rows(data: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    return chain.from_iterable(rows_of(data / f"{name}.jsonl.gz") for name in names)


def learn_words(options: Namespace) -> None:
    """Learn the vocabulary."""
    sources = [str(options.work / name) for name in ("texts.txt", "articles.jsonl")]
    reader = CorpusReader(sources, batch_rows=BATCH_ROWS)
    settings = VocabularySettings(vocab_size=options.vocabulary)
    if not (options.work / "vocabulary").exists():
        train_tokenizer(reader, options.work / "vocabulary", settings, workers=usable_cores())


def teach(options: Namespace) -> None:
    """Let the teacher embed all texts; training reads the vectors from the user's cache."""
    data = DataConfig(train=options.work / "texts.txt", form="texts")
    rows = arrange([read_examples(data.files[0], data, "nothing")], ())
    embed_by_teacher(rows, Embedder(resolve_model(options.teacher).path))


def train(options: Namespace, step: str, seed: int) -> float:
    """Train the model of a step, or go on with it; return the minutes of all training steps."""
    work, (recipe, settings) = options.work, STEPS[step]
    words, texts = f"tokenizer={work}/vocabulary", f"data.train={work}/texts.txt"
    inputs = {
        "table": [words, texts, f"teacher={options.teacher}"],
        "pretrain": [words, f"data.train={work}/articles.jsonl", f"data.folder={work}/tokens"],
        "distil": [f"model={work}/pretrain-{seed}/model", texts, f"teacher={options.teacher}"],
        "nli": [f"model={work}/distil-{seed}/model", f"data.train={work}/nli.jsonl"],
    }[step]
    own = [s.removeprefix(f"{step}.") for s in options.settings if s.startswith(f"{step}.")]
    chosen, out = [f"seed={seed}", *settings.split(), *inputs, *own], work / f"{step}-{seed}"
    if step == "pretrain":
        chosen.append(f"init_from={start_from_table(work, chosen, seed)}")
        state = pretrain(load_recipe(PretrainRecipe, "pretrain", recipe, chosen), out).state
    else:
        chosen.append(f"data.dev={options.data}/stsb/dev.jsonl.gz")
        state = train_bi_encoder(
            load_recipe(BiEncoderRecipe, "bi-encoder", recipe, chosen), out
        ).state
    return state.seconds / 60


def start_from_table(work: Path, settings: Sequence[str], seed: int) -> Path:
    """Return a new BERT whose word embeddings are the principal components of the table's rows."""
    folder, part = work / f"start-{seed}", work / f"start-{seed}.part"
    if not folder.exists():
        model, _ = build(load_recipe(PretrainRecipe, "pretrain", STEPS["pretrain"][0], settings))
        words = model.encoder.embeddings.word.weight
        rows = load_file(work / f"table-{seed}/model/model.safetensors")["embedding.weight"]
        centred = rows - rows.mean(dim=0)
        axes = torch.linalg.svd(centred, full_matrices=False)[2][: words.shape[1]]
        with torch.no_grad():
            words.zero_()[:, : len(axes)] = centred @ axes.T
            words *= SPREAD / words.std()
        shutil.rmtree(part, ignore_errors=True)
        model.save(part)
        part.rename(folder)
    return folder


def measure(options: Namespace) -> dict[str, Any]:
    """Choose a model for each seed; measure it, the table, the teacher and model2vec's table."""
    work, teacher = options.work, resolve_model(options.teacher).path

    def row(name: str, model: Path, part: str = "test") -> dict[str, float]:
        file, make = work / f"{part}-{name}.json", partial(scores, options, model, part)
        return {**kept(file, make)}

    rows = {"teacher": row("teacher", teacher)}
    for seed in range(options.seeds):
        folders = {f"{step}-{seed}": work / f"{step}-{seed}/model" for step in STEPS}
        dev = {name: row(name, folders[name], "dev") for name in (f"distil-{seed}", f"nli-{seed}")}
        best = max(dev, key=lambda name: dev[name]["stsb-dev"] + 100 * dev[name]["retrieval dev"])
        rows |= dev
        for name in (best, f"table-{seed}"):
            state_licences(folders[name])
            rows[name] = dev.get(name, {}) | row(name, folders[name])
    if peer := kept(work / "peer.json", partial(distilled_by_model2vec, options, teacher)):
        rows[f"model2vec {peer}"] = row("model2vec", work / "model2vec")
    students = [f"{step}-{seed}" for seed in range(options.seeds) for step in ("distil", "table")]
    told = Namespace(data=options.data, work=work, model=options.teacher, students=students)
    queries = kept(work / "queries.json", partial(measured, options.collection, told))
    return {"rows": rows, "query_models": queries}


def scores(options: Namespace, model: Path, part: str) -> dict[str, float]:
    """Score a model by STS and by retrieval; count its parameters and its texts per second."""
    texts = held_out(options.data, 1000)
    parts = [texts[start::4] for start in range(4)]  # a table is faster on texts that it knows
    embedder = Embedder(model, device="cpu", precision="fp32")
    seconds = sorted(timeit(partial(embedder.encode, part), number=1) for part in parts)
    weights = (load_file(path) for path in model.rglob("*.safetensors"))
    found: dict[str, float] = {
        "parameters": sum(tensor.numel() for each in weights for tensor in each.values()),
        "texts/s": len(parts[0]) / seconds[1],
    }
    task, search = find_task("retrieval", options.collection), SearchOptions(mode="dense")
    if part == "dev" and options.collection == "scifact":
        task = replace(task, split="train", sha256={})  # the hashes are those of "test"
    with closing(CachedEmbedder(embedder)) as cached:
        for name in options.sts if part == "test" else ("stsb-dev",):
            evaluation = evaluate_sts(find_task("sts", name), cached, data=options.data)
            found[name] = 100 * evaluation.main_score
        evaluation = evaluate_retrieval(task, cached, data=options.data, search=search)
    return {**found, f"retrieval {part}": evaluation.main_score}


def state_licences(model: Path) -> None:
    """Add the licences of the data to the card of a model."""
    card, title = model / "README.md", "## Licences of the data"
    if title not in (text := card.read_text("utf-8")):
        table = _table(["data", "licence"], LICENCES.items())
        replace_file(card, "\n".join([text, title, "", *table, ""]).encode())


def distilled_by_model2vec(options: Namespace, teacher: Path) -> str | None:
    """Write the table that model2vec makes of the teacher; return its version, None: no package."""
    told = [options.peer_python, "-c", MODEL2VEC, str(teacher), str(options.work / "model2vec")]
    done = subprocess.run(told, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        note("model2vec is not measured, by the error above; --peer-python names a Python with it.")
        return None
    return done.stdout.split()[-1]


def write(report: Mapping[str, Any], out: Path) -> None:
    """Write the report as JSON and Markdown."""
    rows, minutes, settings = report["rows"], report["minutes"], report["settings"]
    columns = list(dict.fromkeys(chain(*rows.values())))
    shown = [[m, *(_shown(row[c]) if c in row else "" for c in columns)] for m, row in rows.items()]
    queries = [
        [row["model"], row["mode"], *(f"{row[n]:.3f}" for n in ("nDCG@10", "share"))]
        for row in report["query_models"]
    ]
    lines = [
        "# A small encoder and a table from raw text",
        "",
        "Written by `eval/small_encoder.py`. The number of a model is its seed; each seed's "
        "encoder that was chosen on dev data has test scores. STS: Spearman correlation x 100; "
        f"retrieval: nDCG@10 of dense search in {settings['collection']}. The teacher is "
        f"{settings['teacher']}.",
        "",
        *_table(["model", *columns], shown),
        "",
        "Queries by a student, documents by the teacher:",
        "",
        *_table(["model", "search", "nDCG@10", "share of the teacher's"], queries),
        "",
        *_table(["step", "minutes"], [[name, f"{spent:.1f}"] for name, spent in minutes.items()]),
        "",
    ]
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    replace_file(out / "README.md", "\n".join(lines).encode())
    sys.stdout.write("\n".join(lines))


def _shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value <= 1 else f"{value:.2f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


if __name__ == "__main__":
    main()
