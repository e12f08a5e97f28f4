"""Command lines made from the tree of commands: sound ones of every command, and mutated ones."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq

from sbert_search.cli.main import cli
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.wings import commands as wing_commands
from tests.cli.process import environment
from tests.models.tiny import (
    tiny_answerer,
    tiny_bi_encoder,
    tiny_cross_encoder,
    tiny_encoder,
    tiny_tagger,
    tiny_tokenizer,
)
from tests.train.words import write_vocabulary

NLI = ("contradiction", "entailment", "neutral")
SMALL = "{layers = 1, hidden_size = 16, heads = 2, intermediate_size = 16, max_positions = 32}"
DOCUMENTS = [
    {"_id": f"d{n}", "title": "the mat" * (n % 2), "text": f"the cat sat w{n} w{n + 1}", "year": n}
    for n in range(12)
]
PAIRS = [
    {"sentence1": "the cat", "sentence2": "a cat sat", "score": 4.0},
    {"sentence1": "the cat", "sentence2": "red sun", "score": 1.0},
    {"sentence1": "a dog ran", "sentence2": "a dog ran far", "score": 5.0},
]

# Sound values of parameters, by name; a parameter that is required needs one.
SOUND: Mapping[str, Sequence[str]] = {
    "path": ["index"],
    "sources": ["corpus.jsonl"],
    "out": ["new"],
    "target": ["new"],
    "folder": ["demo"],
    "query": ["cat"],
    "model": ["hashing"],
    "data": ["beir"],
    "tasks": ["pairs.jsonl"],
    "run": ["runs/a"],
    "run_a": ["runs/a"],
    "run_b": ["runs/b"],
    "text": ["the [MASK] sat"],
    "recipe": ["recipe.toml"],
    "shell": ["bash"],
}
# What single commands need besides, or in place of that.
OWN: Mapping[str, Mapping[str, Sequence[str]]] = {
    "search": {"model": []},
    "index add": {"model": []},
    "index upsert": {"model": []},
    "index sync": {"model": [], "folder": ["notes"]},
    "index export": {"to": ["parquet"], "out": ["new"]},
    "index import": {"source": ["vectors.parquet"], "model": []},
    "index tune": {"model": [], "max_minutes": ["0.02"]},
    "index delete": {"ids": ["d1"]},
    "analyze anisotropy": {"model": ["bi"]},
    "analyze map": {"index": ["index"]},
    "analyze attention": {"model": ["bi"], "text": ["the cat"], "second": ["a dog"]},
    "analyze variants": {"recipe": ["recipe.toml"]},
    "index migrate": {"model": ["hashing:8"]},
    "eval retrieval": {"tasks": ["beir"]},
    "eval run": {"qrels": ["beir/qrels/test.tsv"], "runs": ["a.trec", "b.trec"]},
    "eval rerank": {"tasks": ["graded.jsonl"], "model": ["cross"]},
    "eval nli": {"tasks": ["nli.jsonl"], "model": ["judge"]},
    "eval triplets": {"tasks": ["triplets.jsonl"]},
    "eval classify": {"tasks": ["nli.jsonl"], "model": ["judge"]},
    "eval tag": {"tasks": ["tags.jsonl"], "model": ["tagger"]},
    "eval qa": {"tasks": ["questions.jsonl"], "model": ["reader"]},
    "eval fusion": {"model": [], "split": ["test"], "folds": ["2"]},
    "eval mlm": {"model": ["mlm"], "examples": ["4"], "max_len": ["16"]},
    "doctor": {"model": ["bi"]},
    "fill-mask": {"model": ["mlm"]},
    "tokenizer train": {"vocab_size": ["60"], "workers": ["1"]},
    "pretrain": {"recipe": ["pretrain.toml"], "model": []},
    "train bi-encoder": {"recipe": ["bi.toml"], "model": []},
    "train cross-encoder": {"recipe": ["cross.toml"], "model": []},
    "train classify": {"recipe": ["classify.toml"], "model": []},
    "train tag": {"recipe": ["tag.toml"], "model": []},
    "train qa": {"recipe": ["qa.toml"], "model": []},
    "predict": {"model": ["judge"], "source": ["nli.jsonl"]},
    "calibrate": {"model": ["judge"], "source": ["nli.jsonl"]},
}

SLOW = ("analyze", "demo", "eval", "pretrain", "train")

NUMBERS = [
    *("0", "-1", "1", "2", "3", "0.5", "-0.0", "1.5", "1e3", "NaN", "inf", "-inf", "1e400"),
    *("9" * 18, "9" * 40, "9" * 5000, "0x10", "1_000", "٣", "²", "1e9", "2147483648", "1e-400"),
    *("18446744073709551616", "4611686018427387904", "1000000000"),
]  # fmt: skip
WORDS = [
    *("", " ", "-", "--", "--help", "-h", "-k", "auto", "none", "true", "hashing", "cpu", "cuda:7"),
    *("hashing:0", "hashing:-1", "hashing:1e9", "hashing:x", "\t\n", "caf\xe9", "\u65e5\u672c"),
    *("\udcff\udc80", "\x1b[2J", "a,b,,c", "[/b]", "%s%n{0}", "'", '"', "a=b", "=", "=1"),
    *("english", "klingon", "Flat", "IVF4,Flat", "IVF99999999,PQ7", "HNSW0", "HNSW32", "PQ0"),
    *("nDCG@10", "nDCG@0", "MRR", "MAP@1e9", "recall@-1", "test", "train", "1K", "0.5K", "1e9T"),
    *("9" * 30 + "T", "x" * 5000, "OPQ,,"),
]  # fmt: skip
PATHS = [
    *("index", "corpus.jsonl", "absent", "absent/deeper/x", ".", "..", "/", "empty.jsonl", "dir"),
    *("fifo.jsonl", "/dev/null", "/dev/full", "/dev/zero", "loop", "link-out.txt", "binary.jsonl"),
    *("link-index", "broken", "unfinished", "bi", "cross", "vocabulary", "beir", "runs/a", "runs"),
    *("recipe.toml", "pairs.jsonl", "graded.jsonl", "nli.jsonl", "triplets.jsonl", "ids.txt"),
    *("queries.jsonl", "bad.jsonl", "bad.toml", "index/MANIFEST.json", "corpus.jsonl/x", "new"),
    *("new/x/y", "n" * 300, "*.jsonl", "**", "**/*.txt", "[", "~", "-", "/proc/self/mem", "texts"),
    *("/dev/fd/99", "c.csv", "c.parquet", "c.arrow", "c.jsonl.gz", "index/seg", "index/LOCK"),
    *("deep.jsonl", "types.jsonl", "pretrain.toml", "bi.toml", "cross.toml", "bad.gz"),
    *("bad.parquet", "nul.toml"),
]  # fmt: skip
FILTERS = [
    *("year > 3", "title LIKE 'the%'", "year = 'x'", "absent = 1", "(((", "", "year", "1 = 1"),
    *("doc_id IN ('d1', 'd2')", "year < 1" + "0" * 400, "year > 1e400", "title = '\udcff'"),
    *("year BETWEEN 1 AND", "NOT (year IS NULL)", "year IN ()", "SELECT 1", ";", "year > 3 --"),
]  # fmt: skip
SETTINGS = [
    *("budget.steps=1", "optim.lr=nan", "optim.lr=-1", "optim.lr=1e400", "seed=-1", "seed=x"),
    *("data.train=absent", 'data.train="a\\u0000b"', "data.train=fifo.jsonl", "model=hashing"),
    *("model={}", "model={layers=-1}", "model={layers=0, heads=3}", "batching.batch_tokens=0"),
    *("x", "=", "a.b.c=1", "objective=1", "objective.kind='x'", "budget={}", "budget.steps='x'"),
    *("budget.steps=-1", "tokenizer=absent", "data={}", "evaluation.every=0", "schedule.kind=x"),
    *("batching.rows=0", "batching.rows=-5", "data.train=bad.jsonl", "data.train=/dev/null"),
]  # fmt: skip


# Their packages are in another environment; see tests/README.md.
NEED_AN_EXTRA = {"eval mteb"} & wing_commands().keys()


NEVER_END = {"serve", "mcp"}  # tests/serve and tests/integrations/serving test them


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, such as ``index add``."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            if name not in NEED_AN_EXTRA | NEVER_END:
                yield name, command
            return
        context = click.Context(command)
        for part in command.list_commands(context):
            inner = command.get_command(context, part)
            assert inner is not None
            yield from walk(f"{name} {part}".strip(), inner)

    return walk("", cli)


def sound_line(name: str, command: click.Command) -> list[str]:
    """Make a line that a command accepts, of its required parameters and what it needs besides."""
    values = {**SOUND, **OWN.get(name, {})}
    options: list[str] = []
    places: list[str] = []
    for parameter in command.params:
        assert parameter.name is not None
        if isinstance(parameter, click.Argument):
            places += values[parameter.name]
        elif values.get(parameter.name) and (
            parameter.required or parameter.name in ("model", "folder", *OWN.get(name, {}))
        ):
            options += [parameter.opts[0], *values[parameter.name]]
    return [*name.split(), *places, *options]


def mutated_line(draw: random.Random, tree: Sequence[tuple[str, click.Command]]) -> list[str]:
    """Make a line of a command with options, values and places that may be wrong in many ways."""
    slow = draw.random() < 0.06  # these take a hundred times as long as others
    some = [one for one in tree if one[0].startswith(SLOW) == slow]
    name, command = draw.choice(some)
    line = sound_line(name, command)
    n_name = len(name.split())
    options = [p for p in command.params if isinstance(p, click.Option)]
    for _ in range(draw.choice((0, 1, 1, 2, 2, 3, 5)) if options else 0):
        option = draw.choice(options)
        line.append(draw.choice((*option.opts, *option.secondary_opts)))
        if not option.is_flag:
            line += [_value(draw, option) for _ in range(option.nargs)]
    for _ in range(draw.choice((0, 0, 0, 1, 1, 2))):
        _mutate(draw, line, n_name)
    return line


def _value(draw: random.Random, option: click.Option) -> str:
    """Draw a value: most often of the kind that the option takes."""
    if draw.random() < 0.1:
        return draw.choice((*WORDS, *PATHS, *NUMBERS, *FILTERS))
    if isinstance(option.type, click.Choice) and draw.random() < 0.8:
        return str(draw.choice(list(option.type.choices)))
    if option.name == "where":
        return draw.choice(FILTERS)
    if option.name == "overrides":
        return draw.choice(SETTINGS)
    if isinstance(option.type, (click.types.IntParamType, click.types.FloatParamType)):
        return draw.choice(NUMBERS) if draw.random() < 0.5 else str(draw.randrange(1, 9))
    if isinstance(option.type, (click.Path, click.File)):
        return draw.choice(PATHS)
    return draw.choice((*WORDS, *NUMBERS, *PATHS))


def _mutate(draw: random.Random, line: list[str], first: int) -> None:
    """Change one word after the name of the command, or seldom that name."""
    at = draw.randrange(first if draw.random() < 0.97 else 0, len(line) + 1)
    kind = draw.choice(("path", "path", "word", "number", "drop", "repeat", "letters", "swap"))
    if at == len(line) or kind == "repeat":
        line.insert(at, draw.choice((*line, *PATHS, *WORDS)))
    elif kind == "drop":
        del line[at]
    elif kind == "swap":
        other = draw.randrange(first, len(line)) if len(line) > first else at
        line[at], line[other] = line[other], line[at]
    elif kind == "letters":
        line[at] = _letters(draw, line[at])
    else:
        line[at] = draw.choice({"path": PATHS, "word": WORDS, "number": NUMBERS}[kind])


def _letters(draw: random.Random, word: str) -> str:
    at = draw.randrange(len(word) + 1)
    new = draw.choice(("", "-", "=", "0", "\xe9", " ", "\udcff", "/", ",", "x" * 100))
    return word[:at] + new + word[at + draw.randrange(3) :]


def write_world(place: Path) -> Path:
    """Write the files that lines name, an index among them."""
    place.mkdir()
    rows("corpus.jsonl", place, DOCUMENTS)
    rows("pairs.jsonl", place, PAIRS)
    rows("queries.jsonl", place, [{"_id": "q1", "text": "cat"}, {"_id": "q2", "text": "sun"}])
    graded = [
        {"question": "the dog", "answer": a, "label": n} for n, a in enumerate(("sun", "dog"))
    ]
    rows("graded.jsonl", place, graded)
    nli = [
        {"premise": "the cat", "hypothesis": hypothesis, "label": label}
        for hypothesis, label in (("a cat", "entailment"), ("a dog", "contradiction"))
    ]
    rows("nli.jsonl", place, nli)
    rows("tags.jsonl", place, [{"tokens": ["the", "cat"], "tags": ["O", "B-animal"]}])
    question = {"question": "who ran?", "context": "a dog ran", "answers": [["dog", 2]]}
    rows("questions.jsonl", place, [question])
    triplets = [{"anchor": "cat", "positive": "the cat", "negative": "red sun"}]
    rows("triplets.jsonl", place, triplets)
    rows("positives.jsonl", place, [{"anchor": a, "positive": f"the {a}"} for a in ("cat", "dog")])
    rows("beir/corpus.jsonl", place, DOCUMENTS)
    rows("beir/queries.jsonl", place, [{"_id": q, "text": "the cat"} for q in "pqr"])
    (place / "beir" / "qrels").mkdir()
    (place / "beir" / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\np\td1\t1\nq\td3\t1\n"
    )
    types = [
        {"_id": 1, "text": "t", "n": 9007199254740993, "t": "2020-01-02T03:04:05Z", "doc_id": "m"},
        {"_id": 2, "text": "t", "n": 1.5, "nested": {"a": [1]}, "": "unnamed", "\x1b": "\x1b[2J"},
    ]
    rows("types.jsonl", place, types)
    rows("bad.jsonl", place, [{"_id": "b", "text": 5}, {"text": "no id"}])
    (place / "deep.jsonl").write_text('{"text":' + "[" * 100_000)
    (place / "empty.jsonl").write_text("")
    (place / "binary.jsonl").write_bytes(bytes(range(256)))
    (place / "bad.gz").write_bytes(b"\x1f\x8b\x08\x00\x00")
    (place / "bad.parquet").write_bytes(b"PAR1PAR1")
    for name in ("a.trec", "b.trec"):
        (place / name).write_text(f"p Q0 d1 1 2.0 {name}\nq Q0 d3 1 1.0 {name}\n")
    (place / "ids.txt").write_text("d1\nd2\n")
    (place / "c.csv").write_text("id,text,n\n1,the cat,007\n")
    pq.write_table(pa.table({"_id": ["d1"], "vector": [[1.0] * 384]}), place / "vectors.parquet")
    (place / "dir").mkdir()
    (place / "notes").mkdir()
    (place / "notes" / "a.md").write_text("# The cat")
    (place / "texts").mkdir()
    (place / "texts" / "a.txt").write_text("the cat")
    (place / "texts" / "link.txt").symlink_to("../../outside/file.txt")
    (place / "loop").symlink_to("loop")
    (place / "bad.toml").write_text("= [")
    (place / "nul.toml").write_text('corpus = "a\\u0000b"\nmodel = "a\\u0000b"\n')
    _write_recipes(place)
    write_vocabulary(place / "vocabulary")
    tiny_bi_encoder(place / "tokens").save(place / "bi")
    tiny_cross_encoder(place / "tokens").save(place / "cross")
    tiny_cross_encoder(place / "tokens", labels=NLI).save(place / "judge")
    tiny_tagger(place / "tokens").save(place / "tagger")
    tiny_answerer(place / "tokens").save(place / "reader")
    MaskedLanguageModel(tiny_encoder(), tiny_tokenizer(place / "tokens")).save(place / "mlm")
    _build(place)
    return place


def rows(name: str, place: Path, records: Sequence[Mapping[str, Any]]) -> None:
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def _write_recipes(place: Path) -> None:
    recipes = {
        "recipe": 'model = "hashing"\n',
        "pretrain": f'tokenizer = "vocabulary"\nmodel = {SMALL}\n[segments]\nmax_len = 24\n'
        'kind = "full-sentences"\n',
        "bi": 'model = "bi"\n[loss]\nname = "mnrl"\n',
        "cross": 'model = "bi"\ntask = "scores"\nloss = "mse"\nmax_len = 24\n',
        **dict.fromkeys(("classify", "tag", "qa"), 'model = "bi"\nmax_len = 24\n'),
    }
    data = {"pretrain": "corpus.jsonl", "bi": "positives.jsonl", "cross": "pairs.jsonl"}
    data |= {"classify": "nli.jsonl", "tag": "tags.jsonl", "qa": "questions.jsonl"}
    for name, settings in recipes.items():
        if name in data:
            head, _, tables = settings.partition("[")
            settings = (
                f'device = "cpu"\n{head}[budget]\nsteps = 1\n[data]\ntrain = "{data[name]}"\n'
            )
            settings += "held_out = 0.5\n" if name == "pretrain" else ""  # few texts, some masked
            settings += f"[{tables}" if tables else ""
        (place / f"{name}.toml").write_text(settings)


def _build(place: Path) -> None:
    build = ["index", "build", "corpus.jsonl", "--model", "hashing", "--out"]
    run_here = partial(
        subprocess.run, cwd=place, check=True, env=environment(), stdout=subprocess.DEVNULL
    )
    run = [sys.executable, "-m", "sbert_search"]
    run_here([*run, *build, "index"])
    sts = ["eval", "sts", "pairs.jsonl", "--model"]
    for out, model in (("a", "hashing"), ("b", "hashing:16")):
        run_here([*run, *sts, model, "--out", f"runs/{out}", "-q"])
    shutil.copytree(place / "index", place / "broken")
    for file in (place / "broken" / "seg").glob("*.vec.npy"):
        file.write_bytes(file.read_bytes()[:-1])
    (place / "link-index").symlink_to("index")
    shutil.copytree(place / "index", place / "unfinished")


def run_lines(
    folder: Path,
    template: Path,
    batches: Sequence[Mapping[str, Any]],
    examples: Sequence[Sequence[str]] = (),
    shards: int = 1,
) -> list[list[dict[str, Any]]]:
    """Run batches of lines, each batch in a fresh copy of the world.

    Args:
        folder: For the job.
        template: The world, as `write_world` makes it.
        batches: Each with its ``lines`` and, where it shall have a disk of its own, ``disk``: the
            options to mount it with.
        examples: Lines run first to learn what they import, which is then imported only once.
        shards: Processes that share the batches.

    Returns:
        For each line its exit ``code``, what it has ``shown``, ``seconds`` and the ``harm`` done;
        for a batch whose disk cannot be mounted, nothing.
    """
    folder.mkdir(exist_ok=True)
    jobs = [folder / f"job-{number}.json" for number in range(shards)]
    with contextlib.ExitStack() as running:
        started = [
            running.enter_context(_started(job, template, batches[number::shards], examples))
            for number, job in enumerate(jobs)
        ]
    for process, job in zip(started, jobs, strict=True):
        assert process.returncode == 0, job.with_suffix(".log").read_text(errors="replace")[-2000:]
    parts = [json.loads(job.with_suffix(".results").read_text()) for job in jobs]
    return [parts[number % shards][number // shards] for number in range(len(batches))]


def _started(
    job: Path,
    template: Path,
    batches: Sequence[Mapping[str, Any]],
    examples: Sequence[Sequence[str]],
) -> subprocess.Popen[bytes]:
    spec = {
        "template": str(template),
        "scratch": str(job.with_suffix("")),
        "batches": batches,
        "examples": [{"arguments": example} for example in examples],
    }
    job.write_text(json.dumps(spec))
    with job.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.cli.lines_child", str(job)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
