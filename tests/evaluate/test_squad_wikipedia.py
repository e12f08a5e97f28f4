"""The task that is made from SQuAD and Wikipedia."""

from __future__ import annotations

import gzip
import json
import lzma
import subprocess
import sys
from pathlib import Path

import pytest

from sbert_search.evaluate.tasks import check_files, load_task
from sbert_search.text.documents import CorpusReader
from sbert_search.text.labelled.retrieval import read_qrels, read_queries
from tests.cli.process import ROOT, environment

LONG = "This paragraph is long enough to be taken into the corpus, because it goes on. " * 2


def write(data: Path, out: Path, program: str = "") -> None:
    script = [str(ROOT / "eval/squad_wikipedia.py"), str(data), str(out)]
    if program:
        script = ["-c", program, str(data), str(out)]
    done = subprocess.run(
        [sys.executable, *script], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_the_task_is_what_its_file_names(real_data: Path, tmp_path: Path) -> None:
    write(real_data, tmp_path)
    task = load_task(ROOT / "eval/tasks/squad-wikipedia-101k.toml")
    files = [tmp_path / name for name in task.sha256]
    assert check_files(task, tmp_path, files) == task.sha256


def test_paragraphs_questions_and_judgements_belong_together(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "squad").mkdir(parents=True)
    (data / "wikipedia-en-2014").mkdir()
    for half in "ab":
        rows = [
            {
                "id": f"{half}{n}",
                "context": f"context {half} {n // 2}",
                "question": f" what {n}? ",
                "is_impossible": n == 3 if half == "a" else None,
            }
            for n in range(6)
        ]
        with gzip.open(data / "squad" / f"dev_{half}.jsonl.gz", "wt") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    for number in range(2):
        text = f"Heading.\n{LONG} {number} one\nshort\n{LONG} {number} two"
        with lzma.open(data / "wikipedia-en-2014" / f"train-{number}.jsonl.xz", "wt") as file:
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    program = (
        "import sys; from pathlib import Path; sys.path.insert(0, 'eval'); import squad_wikipedia; "
        "squad_wikipedia.write(*map(Path, sys.argv[1:]), distractors=3, questions=2)"
    )
    write(data, tmp_path / "out", program)
    folder = tmp_path / "out" / "squad-wikipedia-101k"
    documents = {d.doc_id: d.text for b in CorpusReader([folder]).batches() for d in b.documents}
    assert list(documents) == [
        *(f"squad-{n}" for n in range(6)),
        *(f"wikipedia-{n}" for n in range(3)),
    ]
    assert documents["squad-3"] == "context b 0"
    assert documents["wikipedia-2"] == f"{LONG} 1 one"
    assert read_queries(folder)[0].text == "what 0?"
    everything = read_qrels(folder, "all")
    assert everything["a4"] == {"squad-2": 1}
    assert everything.keys() == {"a0", "a1", "a2", "a4", "a5"}
    drawn = read_qrels(folder, "test")
    assert len(drawn) == 2
    assert all(everything[query_id] == grades for query_id, grades in drawn.items())
