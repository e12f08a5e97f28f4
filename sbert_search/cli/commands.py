"""The commands of the core: their homes, and what helps show of them without importing them."""

from __future__ import annotations

from sbert_search.wings import Command

COMMANDS: dict[str, Command] = {
    "demo": Command(
        "sbert_search.cli.demo:demo",
        line="Index and search the docstrings of Python.",
        examples=(
            "sbert-search demo",
            "sbert-search demo --dir my-demo",
            "sbert-search demo --model hashing --quiet",
        ),
    ),
    "index": Command(
        "sbert_search.cli.index.group:index",
        line="Build, update, check and tune an index.",
    ),
    "index build": Command(
        "sbert_search.cli.index.update:build",
        examples=(
            "sbert-search index build docs.jsonl --out my.index",
            "sbert-search index build 'notes/*.md' --out my.index --on-truncate chunk",
            "sbert-search index build a.csv --out my.index --language german",
        ),
    ),
    "index add": Command(
        "sbert_search.cli.index.update:add",
        examples=(
            "sbert-search index add my.index new.jsonl",
            "sbert-search index add my.index new.jsonl --on-error skip",
            "cat new.jsonl | sbert-search index add my.index -",
        ),
    ),
    "index upsert": Command(
        "sbert_search.cli.index.update:upsert",
        examples=(
            "sbert-search index upsert my.index changes.jsonl",
            "sbert-search index upsert my.index changes.parquet --wait 60",
            "sbert-search index upsert my.index changes.csv --id-field number --quiet",
        ),
    ),
    "index sync": Command(
        "sbert_search.cli.index.sync:sync",
        examples=(
            "sbert-search index sync my.index notes",
            "sbert-search index sync my.index notes --dry-run",
            "sbert-search index sync my.index notes --watch",
        ),
    ),
    "index delete": Command(
        "sbert_search.cli.index.update:delete",
        examples=(
            "sbert-search index delete my.index --ids 17,42",
            "sbert-search index delete my.index --ids-file gone.txt",
            "sbert-search index delete my.index --where \"year < 2000 AND kind = 'note'\"",
        ),
    ),
    "index info": Command(
        "sbert_search.cli.index.maintain:info",
        examples=(
            "sbert-search index info my.index",
            "sbert-search index info my.index --json",
            "SBERT_SEARCH_JSON=1 sbert-search index info my.index",
        ),
    ),
    "index check": Command(
        "sbert_search.cli.index.maintain:check",
        examples=(
            "sbert-search index check my.index",
            "sbert-search index check my.index --drift",
            "sbert-search index check my.index --drift --recall 0.98 --json",
        ),
    ),
    "index repair": Command(
        "sbert_search.cli.index.maintain:repair",
        examples=(
            "sbert-search index repair my.index",
            "sbert-search index repair my.index --json",
            "sbert-search index repair my.index --quiet",
        ),
    ),
    "index compact": Command(
        "sbert_search.cli.index.maintain:compact",
        examples=(
            "sbert-search index compact my.index",
            "sbert-search index compact my.index --memory 2G --wait 60",
            "sbert-search index compact my.index --retrain",
        ),
    ),
    "index lexical": Command(
        "sbert_search.cli.index.maintain:lexical",
        examples=(
            "sbert-search index lexical my.index",
            "sbert-search index lexical my.index --language german",
            "sbert-search index lexical my.index --title-weight 3 --k1 1.5",
        ),
    ),
    "index backup": Command(
        "sbert_search.cli.index.maintain:backup",
        examples=(
            "sbert-search index backup my.index backups/monday.index",
            "sbert-search index backup my.index /mnt/disk/my.index --quiet",
            "sbert-search index backup my.index copy.index --json",
        ),
    ),
    "index migrate": Command(
        "sbert_search.cli.index.migrate:migrate",
        examples=(
            "sbert-search index migrate my.index --model mine/model --dry-run",
            "sbert-search index migrate my.index --model mine/model --max-minutes 30",
            "sbert-search index migrate my.index --rollback",
        ),
    ),
    "index query-model": Command(
        "sbert_search.cli.index.migrate:query_model",
        examples=(
            "sbert-search index query-model my.index my-table",
            "sbert-search index query-model my.index my-table --judge queries.jsonl",
            "sbert-search index query-model my.index --remove",
        ),
    ),
    "index tune": Command(
        "sbert_search.cli.index.maintain:tune",
        examples=(
            "sbert-search index tune my.index --dry-run",
            "sbert-search index tune my.index --recall 0.98 --latency-ms 5",
            "sbert-search index tune my.index --queries queries.jsonl --memory 4G",
        ),
    ),
    "embed": Command(
        "sbert_search.cli.embed:embed",
        line="Embed the documents of SOURCE and write a Parquet file.",
        examples=(
            "sbert-search embed docs.jsonl --out vectors.parquet",
            "sbert-search embed a.csv --out vectors.parquet --text-field body",
            "sbert-search embed notes --out vectors.parquet --on-truncate chunk",
        ),
    ),
    "search": Command(
        "sbert_search.cli.search:search",
        line="Search the index DIR for QUERY.",
        examples=(
            'sbert-search search my.index "how do vaccines work?"',
            'sbert-search search my.index "old mills" -k 5 --where "year < 1990"',
            "sbert-search search my.index --queries queries.jsonl --run-out run.trec",
        ),
    ),
    "serve": Command(
        "sbert_search.cli.serve:serve",
        line="Serve indexes and models over HTTP.",
        examples=(
            "sbert-search serve my.index",
            "sbert-search serve news=my.index --rerank my-judge --port 9000",
            "sbert-search serve my.index --host 0.0.0.0 --token-file tokens.txt",
        ),
    ),
    "mcp": Command(
        "sbert_search.cli.serve:mcp",
        line="Offer search to a language model over stdin and stdout.",
        examples=(
            "sbert-search mcp my.index",
            "sbert-search mcp news=my.index --rerank my-judge",
            "sbert-search mcp my.index --precision fp32 --quiet",
        ),
    ),
    "pairs": Command(
        "sbert_search.cli.pairs:pairs",
        line="Find pairs of similar documents in SOURCE.",
        examples=(
            "sbert-search pairs docs.jsonl --threshold 0.9",
            "sbert-search pairs my.index --top 20",
            "sbert-search pairs docs.jsonl --clusters --json",
        ),
    ),
    "eval": Command(
        "sbert_search.cli.evaluate.run:evaluate",
        line="Evaluate a model on tasks with known answers.",
    ),
    "eval run": Command(
        "sbert_search.cli.evaluate.commands:run",
        examples=(
            "sbert-search eval run qrels.txt a.trec",
            "sbert-search eval run qrels.txt a.trec b.trec",
            "sbert-search eval run qrels.txt a.trec b.trec --metric MAP --json",
        ),
    ),
    "eval compare": Command(
        "sbert_search.cli.evaluate.commands:compare",
        examples=(
            "sbert-search eval compare runs/a runs/b",
            "sbert-search eval compare runs/a runs/b --metric nDCG@10",
            "sbert-search eval compare runs/a runs/b --svg plots",
        ),
    ),
    "eval fusion": Command(
        "sbert_search.cli.evaluate.commands:fusion",
        examples=(
            "sbert-search eval fusion my.index my-data",
            "sbert-search eval fusion my.index pairs.csv",
            "sbert-search eval fusion my.index my-data --folds 10 --json",
        ),
    ),
    "eval mlm": Command(
        "sbert_search.cli.evaluate.commands:mlm",
        examples=(
            "sbert-search eval mlm held-out.txt --model my-encoder/model",
            "sbert-search eval mlm held-out.txt --model my-encoder/model --pseudo 64",
            "sbert-search eval mlm held-out.txt --model bert-base-uncased --max-len 64",
        ),
    ),
    "eval sts": Command(
        "sbert_search.cli.evaluate.run:sts",
        examples=(
            "sbert-search eval sts pairs.tsv --model my-model/model",
            "sbert-search eval sts pairs.jsonl --baselines",
            "sbert-search eval sts pairs.jsonl --model my-model/model --out reports",
        ),
    ),
    "eval retrieval": Command(
        "sbert_search.cli.evaluate.run:retrieval",
        examples=(
            "sbert-search eval retrieval my-data --model my-model/model",
            "sbert-search eval retrieval my-data --mode dense --out reports",
            "sbert-search eval retrieval my-data --rerank my-reranker/model --split dev",
        ),
    ),
    "eval rerank": Command(
        "sbert_search.cli.evaluate.run:rerank",
        examples=(
            "sbert-search eval rerank judged.jsonl --model my-judge/model",
            "sbert-search eval rerank judged.jsonl --model my-judge/model --out reports",
            "sbert-search eval rerank judged.jsonl --model my-judge/model --json",
        ),
    ),
    "eval nli": Command(
        "sbert_search.cli.evaluate.run:nli",
        examples=(
            "sbert-search eval nli pairs.jsonl --model my-classifier/model",
            "sbert-search eval nli pairs.jsonl --model my-classifier/model --out reports",
            "sbert-search eval nli pairs.csv --model my-classifier/model --json",
        ),
    ),
    "eval triplets": Command(
        "sbert_search.cli.evaluate.run:triplets",
        examples=(
            "sbert-search eval triplets triplets.jsonl",
            "sbert-search eval triplets triplets.jsonl --model my-model/model",
            "sbert-search eval triplets triplets.jsonl --out reports --json",
        ),
    ),
    "tokenizer": Command(
        "sbert_search.cli.tokenizer:tokenizer",
        line="Train a tokenizer.",
    ),
    "tokenizer train": Command(
        "sbert_search.cli.tokenizer:train",
        examples=(
            "sbert-search tokenizer train texts.txt --out my-tokenizer",
            "sbert-search tokenizer train notes --out my-tokenizer --vocab-size 8000",
            "sbert-search tokenizer train new.txt --out wider --extend my-tokenizer",
        ),
    ),
    "fill-mask": Command(
        "sbert_search.cli.embed:fill_mask",
        line="Predict the most probable tokens for each [MASK] of TEXT.",
        examples=(
            'sbert-search fill-mask my-encoder/model "The cat [MASK] on the mat."',
            'sbert-search fill-mask bert-base-uncased "Paris is in [MASK]." -k 3',
            'sbert-search fill-mask my-encoder/model "A [MASK] sky." --json',
        ),
    ),
    "pretrain": Command(
        "sbert_search.cli.train:pretrain",
        line="Train an encoder on raw text.",
        examples=(
            "sbert-search pretrain bert --help",
            "sbert-search pretrain bert --set data.train=a.txt --set tokenizer=words",
            "sbert-search pretrain --resume my-encoder",
        ),
    ),
    "train": Command(
        "sbert_search.cli.train:train",
        line="Train a bi-encoder, a cross-encoder or a task head on labelled text.",
    ),
    "train bi-encoder": Command(
        "sbert_search.cli.train:bi_encoder",
        examples=(
            "sbert-search train bi-encoder pairs.csv --out my-model",
            "sbert-search train bi-encoder mnrl-nli --data a.csv --lr 1e-5 --out my-model",
            "sbert-search train bi-encoder --resume my-model",
        ),
    ),
    "train cross-encoder": Command(
        "sbert_search.cli.train:cross_encoder",
        examples=(
            "sbert-search train cross-encoder relevance --help",
            "sbert-search train cross-encoder nli --set data.train=a.csv --out my-judge",
            "sbert-search train cross-encoder --resume my-judge",
        ),
    ),
    "doctor": Command(
        "sbert_search.cli.doctor:doctor",
        line="Describe this machine and installation.",
        examples=(
            "sbert-search doctor",
            "sbert-search doctor --json",
            "sbert-search doctor --measure my-model",
        ),
    ),
    "completion": Command(
        "sbert_search.cli.doctor:completion",
        line="Print a script that completes commands, options and recipes in SHELL.",
        examples=(
            "sbert-search completion bash",
            "sbert-search completion zsh",
            "sbert-search completion fish",
        ),
    ),
}
"""By full name, in the order of the help; a wing declares its commands in the same way."""
