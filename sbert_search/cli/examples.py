"""Examples of each command, which its help prints at the end."""

from __future__ import annotations

from sbert_search.wings import commands

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": (
        "sbert-search demo",
        "sbert-search demo --dir my-demo",
        "sbert-search demo --model hashing --quiet",
    ),
    "doctor": (
        "sbert-search doctor",
        "sbert-search doctor --json",
        "sbert-search doctor --measure my-model",
    ),
    "serve": (
        "sbert-search serve my.index",
        "sbert-search serve news=my.index --rerank my-judge --port 9000",
        "sbert-search serve my.index --host 0.0.0.0 --token-file tokens.txt",
    ),
    "mcp": (
        "sbert-search mcp my.index",
        "sbert-search mcp news=my.index --rerank my-judge",
        "sbert-search mcp my.index --precision fp32 --quiet",
    ),
    "index build": (
        "sbert-search index build docs.jsonl --out my.index",
        "sbert-search index build 'notes/*.md' --out my.index --on-truncate chunk",
        "sbert-search index build a.csv --out my.index --language german",
    ),
    "index add": (
        "sbert-search index add my.index new.jsonl",
        "sbert-search index add my.index new.jsonl --on-error skip",
        "cat new.jsonl | sbert-search index add my.index -",
    ),
    "index upsert": (
        "sbert-search index upsert my.index changes.jsonl",
        "sbert-search index upsert my.index changes.parquet --wait 60",
        "sbert-search index upsert my.index changes.csv --id-field number --quiet",
    ),
    "index sync": (
        "sbert-search index sync my.index notes",
        "sbert-search index sync my.index notes --dry-run",
        "sbert-search index sync my.index notes --watch",
    ),
    "index delete": (
        "sbert-search index delete my.index --ids 17,42",
        "sbert-search index delete my.index --ids-file gone.txt",
        "sbert-search index delete my.index --where \"year < 2000 AND kind = 'note'\"",
    ),
    "index info": (
        "sbert-search index info my.index",
        "sbert-search index info my.index --json",
        "SBERT_SEARCH_JSON=1 sbert-search index info my.index",
    ),
    "index check": (
        "sbert-search index check my.index",
        "sbert-search index check my.index --drift",
        "sbert-search index check my.index --drift --recall 0.98 --json",
    ),
    "index repair": (
        "sbert-search index repair my.index",
        "sbert-search index repair my.index --json",
        "sbert-search index repair my.index --quiet",
    ),
    "index compact": (
        "sbert-search index compact my.index",
        "sbert-search index compact my.index --memory 2G --wait 60",
        "sbert-search index compact my.index --retrain",
    ),
    "index lexical": (
        "sbert-search index lexical my.index",
        "sbert-search index lexical my.index --language german",
        "sbert-search index lexical my.index --title-weight 3 --k1 1.5",
    ),
    "index backup": (
        "sbert-search index backup my.index backups/monday.index",
        "sbert-search index backup my.index /mnt/disk/my.index --quiet",
        "sbert-search index backup my.index copy.index --json",
    ),
    "index tune": (
        "sbert-search index tune my.index --dry-run",
        "sbert-search index tune my.index --recall 0.98 --latency-ms 5",
        "sbert-search index tune my.index --queries queries.jsonl --memory 4G",
    ),
    "embed": (
        "sbert-search embed docs.jsonl --out vectors.parquet",
        "sbert-search embed a.csv --out vectors.parquet --text-field body",
        "sbert-search embed notes --out vectors.parquet --on-truncate chunk",
    ),
    "search": (
        'sbert-search search my.index "how do vaccines work?"',
        'sbert-search search my.index "old mills" -k 5 --where "year < 1990"',
        "sbert-search search my.index --queries queries.jsonl --run-out run.trec",
    ),
    "pairs": (
        "sbert-search pairs docs.jsonl --threshold 0.9",
        "sbert-search pairs my.index --top 20",
        "sbert-search pairs docs.jsonl --clusters --json",
    ),
    "eval compare": (
        "sbert-search eval compare runs/a runs/b",
        "sbert-search eval compare runs/a runs/b --metric nDCG@10",
        "sbert-search eval compare runs/a runs/b --svg plots",
    ),
    "eval fusion": (
        "sbert-search eval fusion my.index my-data",
        "sbert-search eval fusion my.index my-data --split dev",
        "sbert-search eval fusion my.index my-data --folds 10 --json",
    ),
    "eval mlm": (
        "sbert-search eval mlm held-out.txt --model my-encoder/model",
        "sbert-search eval mlm held-out.txt --model my-encoder/model --pseudo 64",
        "sbert-search eval mlm held-out.txt --model bert-base-uncased --max-len 64",
    ),
    "eval nli": (
        "sbert-search eval nli pairs.jsonl --model my-classifier/model",
        "sbert-search eval nli pairs.jsonl --model my-classifier/model --out reports",
        "sbert-search eval nli pairs.csv --model my-classifier/model --json",
    ),
    "eval rerank": (
        "sbert-search eval rerank judged.jsonl --model my-judge/model",
        "sbert-search eval rerank judged.jsonl --model my-judge/model --out reports",
        "sbert-search eval rerank judged.jsonl --model my-judge/model --json",
    ),
    "eval retrieval": (
        "sbert-search eval retrieval my-data --model my-model/model",
        "sbert-search eval retrieval my-data --mode dense --out reports",
        "sbert-search eval retrieval my-data --rerank my-reranker/model --split dev",
    ),
    "eval sts": (
        "sbert-search eval sts pairs.tsv --model my-model/model",
        "sbert-search eval sts pairs.jsonl --baselines",
        "sbert-search eval sts pairs.jsonl --model my-model/model --out reports",
    ),
    "eval triplets": (
        "sbert-search eval triplets triplets.jsonl",
        "sbert-search eval triplets triplets.jsonl --model my-model/model",
        "sbert-search eval triplets triplets.jsonl --out reports --json",
    ),
    "tokenizer train": (
        "sbert-search tokenizer train texts.txt --out my-tokenizer",
        "sbert-search tokenizer train notes --out my-tokenizer --vocab-size 8000",
        "sbert-search tokenizer train new.txt --out wider --extend my-tokenizer",
    ),
    "fill-mask": (
        'sbert-search fill-mask my-encoder/model "The cat [MASK] on the mat."',
        'sbert-search fill-mask bert-base-uncased "Paris is in [MASK]." -k 3',
        'sbert-search fill-mask my-encoder/model "A [MASK] sky." --json',
    ),
    "pretrain": (
        "sbert-search pretrain bert --help",
        "sbert-search pretrain bert --set data.train=a.txt --set tokenizer=words",
        "sbert-search pretrain --resume my-encoder",
    ),
    "train bi-encoder": (
        "sbert-search train bi-encoder mnrl-nli --help",
        "sbert-search train bi-encoder mnrl-nli --set data.train=a.csv --out my-model",
        "sbert-search train bi-encoder --resume my-model",
    ),
    "train cross-encoder": (
        "sbert-search train cross-encoder relevance --help",
        "sbert-search train cross-encoder nli --set data.train=a.csv --out my-judge",
        "sbert-search train cross-encoder --resume my-judge",
    ),
    "completion": (
        "sbert-search completion bash",
        "sbert-search completion zsh",
        "sbert-search completion fish",
    ),
}


def with_examples(epilog: str | None, name: str) -> str:
    """Return the end of a command's help: its epilog, if any, and its examples, not wrapped."""
    added = commands().get(name)
    examples = added.examples if added else EXAMPLES.get(name, ())
    lines = "\n".join(f"  {example}" for example in examples)
    parts = [epilog or "", f"\b\nExamples:\n{lines}" if lines else ""]
    return "\n\n".join(filter(None, parts))
