"""A small world of four topics, and command lines that train each kind of model on it in a second.

`probe.py` and tests/test_mission.py share it. It uses no code of the package, so that it is the
same for every commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

TOPICS = {
    "medicine": ("vaccine", "germ", "doctor", "patient"),
    "mills": ("river", "wheel", "stone", "grain"),
    "bread": ("baker", "flour", "dough", "oven"),
    "space": ("moon", "comet", "rocket", "planet"),
}
NAMES = tuple(TOPICS)
VERBS = ("turns", "finds", "meets", "leaves", "holds")
LABELS = ("contradiction", "entailment", "neutral")
SHAPE = {"hidden_size": 32, "heads": 2, "intermediate_size": 64, "max_positions": 64, "layers": 2}
GENERATOR = SHAPE | {"hidden_size": 16, "heads": 1, "embedding_size": 32, "layers": 1}


def sentence(topic: int, n: int) -> str:
    words = TOPICS[NAMES[topic % 4]]
    return f"The {words[n % 4]} {VERBS[n % 5]} the {words[(n + 1 + n // 4 % 3) % 4]}."


def text(n: int) -> str:
    """The text of document n: three sentences of one topic."""
    return " ".join(sentence(n, n // 4 + 5 * place) for place in range(3))


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def documents(count: int = 48) -> list[dict[str, object]]:
    return [
        {"_id": f"d{n}", "title": NAMES[n % 4], "text": text(n), "kind": NAMES[n % 4], "year": n}
        for n in range(count)
    ]


def write_world(folder: Path) -> Path:
    """Write the documents, and labelled data of every form that a trainer reads."""
    both = [  # a row's second text has its topic if the row's number is even
        {"sentence1": sentence(n, n), "sentence2": sentence(n + n % 2, n + 3)} for n in range(64)
    ]
    tagged, questions = [], []
    for n in range(64):
        tokens = sentence(n, n)[:-1].split()
        named = [f"B-{NAMES[n % 4]}" if place in (1, 4) else "O" for place in range(len(tokens))]
        tagged.append({"tokens": tokens, "tags": named})
        answers = [[tokens[1], 4]]
        asked = {"id": str(n), "title": str(n), "question": f"What {tokens[2]}?"}
        questions.append({**asked, "context": sentence(n, n), "answers": answers})
    rows: dict[str, list[dict[str, object]]] = {
        "corpus": documents(),
        "texts": [{"text": sentence(n, n)} for n in range(64)],
        "classes": [{"text": sentence(n, n), "label": NAMES[n % 4]} for n in range(64)],
        "nli": [{**row, "label": LABELS[1 - n % 2]} for n, row in enumerate(both)],
        "sts": [{**row, "score": 5.0 * (1 - n % 2)} for n, row in enumerate(both)],
        "binary": [{**row, "label": 1 - n % 2} for n, row in enumerate(both)],
        "pairs": [{"query": sentence(n, n), "passage": text(n)} for n in range(48)],
        "groups": [{"texts": [sentence(n, n), sentence(n, n + 1)]} for n in range(32)],
        "triplets": [
            {"anchor": sentence(n, n), "positive": text(n), "negative": text(n + 1)}
            for n in range(48)
        ],
        "tags": [dict(row) for row in tagged],
        "questions": [dict(row) for row in questions],
        "beir/corpus": documents(),
        "beir/queries": [{"_id": f"q{n}", "text": sentence(n, n)} for n in range(8)],
    }
    for name, some in rows.items():
        write_rows(folder / f"{name}.jsonl", some)
    judged = [f"q{n}\td{other}\t1" for n in range(8) for other in range(n % 4, 48, 4)]
    (folder / "beir" / "qrels").mkdir(parents=True, exist_ok=True)
    lines = "\n".join(["query-id\tcorpus-id\tscore", *judged])
    (folder / "beir" / "qrels" / "test.tsv").write_text(f"{lines}\n", encoding="utf-8")
    return folder


def train_tokenizer(world: Path) -> list[object]:
    """The command that writes ``tokens/``, which all models read."""
    line = ["tokenizer", "train", world / "corpus.jsonl", "--vocab-size", 120, "--workers", 1]
    return [*line, "--out", world / "tokens"]


def pretraining(world: Path, name: str, *more: str, steps: int = 30) -> list[object]:
    """The command that pre-trains one family, without ``--out``."""
    settings = [f"data.train={world / 'corpus.jsonl'}", "data.held_out=0.25", "segments.max_len=48"]
    if name != "continue":
        settings += ["size=tiny", *(f"model.{key}={value}" for key, value in SHAPE.items())]
    if name == "electra":
        settings += [f"generator.{key}={value}" for key, value in GENERATOR.items()]
    if name not in ("distilbert", "continue"):
        settings.append(f"tokenizer={world / 'tokens'}")
    return ["pretrain", name, *_quick(settings, steps), *_settings(more)]


def training(world: Path, kind: str, recipe: str, *more: str, steps: int = 30) -> list[object]:
    """The command that trains from the model of ``bert/``, without ``--out``."""
    settings = [f"model={world}/bert/model", "max_len=32"]
    return ["train", kind, recipe, *_quick(settings, steps), *_settings(more)]


def trainers(world: Path, steps: int) -> dict[str, list[object]]:
    """Return a command for each trainer, by output folder; some need the output of earlier ones."""

    def data(name: str) -> tuple[str, str]:
        file = f"{world / name}.jsonl"
        return f"data.train={file}", f"data.dev={file}"

    pre = {
        name: pretraining(world, name, steps=steps)
        for name in ("bert", "roberta", "albert", "electra", "deberta")
    }
    model = f"{world}/bert/model"
    half = (f"teacher={model}", "model.layers=1")  # as DistilBERT has half the layers of BERT
    pre["distilbert"] = pretraining(world, "distilbert", *half, steps=steps)
    pre["continue"] = pretraining(world, "continue", f"init_from={model}", steps=steps)

    def learn(kind: str, recipe: str, *more: str) -> list[object]:
        return training(world, kind, recipe, *more, steps=steps)

    first, texts = f"first.data.train={world}/nli.jsonl", f"data.train={world}/texts.jsonl"
    sentences, scorer = (f"model={world}/{name}/model" for name in ("triplet", "cross-stsb"))
    classes = (*data("classes"), "data.labels=[]", "evaluation.figure=accuracy", sentences)
    triplets = (*data("triplets"), "data.form=triplets")
    return pre | {
        "nli": learn("bi-encoder", "nli", *data("nli")),
        "stsb": learn("bi-encoder", "stsb", *data("sts")),
        "nli-then-stsb": learn("bi-encoder", "nli-then-stsb", *data("sts"), first),
        "triplet": learn("bi-encoder", "triplet", *triplets),
        "mnrl-nli": learn("bi-encoder", "mnrl-nli", *data("nli")),
        "paraphrase": learn("bi-encoder", "paraphrase", *data("groups")),
        "query-passage": learn("bi-encoder", "query-passage", *data("pairs"), sentences),
        "simcse": learn("bi-encoder", "simcse", texts),
        "distill": learn("bi-encoder", "distill", texts, f"teacher={world}/stsb/model"),
        "cross-stsb": learn("cross-encoder", "stsb", *data("sts")),
        "cross-nli": learn("cross-encoder", "nli", *data("nli"), scorer),
        "relevance": learn("cross-encoder", "relevance", triplets[0], triplets[2], scorer),
        "classify": learn("classify", "sst2", *classes),
        "frozen": learn("classify", "sst2", *classes, "tune=head"),
        "probe": learn("classify", "few", *classes),
        "tag": learn("tag", "wnut17", *data("tags")),
        "crf": learn("tag", "wnut17", *data("tags"), "crf=true"),
        "answer": learn("qa", "squad", *data("questions"), "windows.overlap=2"),
    }


def _quick(settings: Iterable[str], steps: int) -> list[object]:
    quick = [f"budget={{steps={steps}}}", "batching.size=8", "optim.lr=5e-3", "schedule.warmup=0"]
    options = ["--device", "cpu", "--precision", "fp32", "--seed", 1]
    return [*_settings([*settings, *quick]), *options]


def _settings(values: Iterable[str]) -> list[object]:
    return [word for value in values for word in ("--set", value)]
