"""A comparison of tiny models on texts without meaning, which takes seconds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.train.words import WORDS, write_texts, write_vocabulary

SHAPE = {"layers": 1, "hidden_size": 16, "heads": 2, "intermediate_size": 16, "max_positions": 32}


def write_comparison(
    folder: Path, *, families: tuple[str, ...] = ("bert", "albert"), classifier: bool = True
) -> Path:
    """Write a recipe and its data below a folder; return the recipe."""
    write_vocabulary(folder / "vocabulary")
    write_texts(folder / "train.jsonl", 60, sentences=3, words=8)
    write_texts(folder / "held-out.jsonl", 20, sentences=3, words=8)
    sentences = [" ".join(WORDS[n : n + 4]) for n in range(0, 80, 2)]
    beside = list(zip(sentences, sentences[1:] + sentences[:1], strict=True))
    labels = ("entailment", "neutral", "contradiction")
    tables: dict[str, list[dict[str, object]]] = {
        "nli": [{"label": labels[n % 3]} for n in range(40)],
        "stsb": [{"score": float(n % 6)} for n in range(40)],
    }
    for name, rows in tables.items():
        write_rows(
            folder / f"{name}.jsonl",
            [
                {"sentence1": first, "sentence2": second, **row}
                for (first, second), row in zip(beside, rows, strict=True)
            ],
        )
    write_rows(
        folder / "reviews.jsonl",
        [{"text": text, "label": str(n % 2)} for n, text in enumerate(sentences)],
    )
    write_rows(folder / "pairs.jsonl", [{"query": a, "passage": b} for a, b in beside])
    (folder / "beir" / "qrels").mkdir(parents=True)
    write_rows(
        folder / "beir" / "corpus.jsonl",
        [{"_id": f"d{n}", "text": text} for n, text in enumerate(sentences)],
    )
    write_rows(
        folder / "beir" / "queries.jsonl",
        [{"_id": f"q{n}", "text": sentences[n].split()[0]} for n in range(5)],
    )
    judged = "".join(f"q{n}\td{n}\t1\n" for n in range(5))
    (folder / "beir" / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    tuning = 'settings = ["data.train=@/{file}", "budget={{steps=2}}", "precision=fp32"{more}]'
    shape = [f"model.{name}={value}" for name, value in SHAPE.items()]
    file = folder / "variants.toml"
    file.write_text(
        f"""corpus = ["@/train.jsonl"]
held_out = ["@/held-out.jsonl"]
vocabulary = "@/vocabulary"
tokens = 2400
size = "tiny"
max_len = 24
batch = 8
readings = 6
families = {json.dumps(families)}
settings = {json.dumps([*shape, "precision=fp32", "data.dev_examples=16"])}
sts = ["@/stsb.jsonl"]
retrieval = ["@/beir"]
classify = ["@/reviews.jsonl"]

[family_settings]
albert = ["model.embedding_size=8"]
electra = ["generator.max_positions=32", "generator.embedding_size=16"]

[nli]
recipe = "nli"
{tuning.format(file="nli.jsonl", more="")}

[stsb]
recipe = "stsb"
{tuning.format(file="stsb.jsonl", more="")}

[pairs]
recipe = "query-passage"
{tuning.format(file="pairs.jsonl", more=', "mining.negatives=0"')}

[classifier]
recipe = "sst2"
{tuning.format(file="reviews.jsonl", more=', "data.held_out=0", "max_len=24"')}
"""
    )
    if not classifier:  # its table is the last one
        text = file.read_text().replace('classify = ["@/reviews.jsonl"]\n', "")
        file.write_text(text.partition("[classifier]")[0])
    return file


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
