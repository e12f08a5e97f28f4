"""Speed of embedding by a static table: ours, sentence-transformers', model2vec's; our encoder.

    python benchmarks/bench_table.py [--quick] [--table FOLDER] [--model FOLDER]
        [--peer-python PYTHON]

The table is that of --table, as `train static` writes one, or one of random values over the
tokenizer of the encoder. All programs encode the same texts of SciFact and of STSb in turns, by
processor time. No text comes twice, since our tokenizer remembers words: `_first` is the rate on
the first texts, when it knows none. The encoder is all-MiniLM-L6-v2 or that of --model, in fp32.
model2vec is measured if --peer-python names a Python that has it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from common import Figure, Results, arguments, paired, processor_rate, repeats_of
from sentence_transformers import SentenceTransformer
from texts import documents, sentences

from sbert_search import Embedder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.static_model import StaticModel
from sbert_search.text.tokens.tokenizer import TextTokenizer

ENCODED = 50  # texts of each set that the encoder is measured on
PEER = """
import json, sys, time
from model2vec import StaticModel
model, rates = StaticModel.from_pretrained(sys.argv[1]), []
for texts in json.load(sys.stdin):
    start = time.process_time()
    model.encode(texts, use_multiprocessing=False)
    rates.append(len(texts) / (time.process_time() - start))
print(json.dumps(rates))
"""


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--table", type=Path, help="folder; default: random values")
    parser.add_argument("--model", help="encoder; default: the installed all-MiniLM-L6-v2")
    parser.add_argument("--peer-python", default=sys.executable, help="Python with model2vec")
    options = parser.parse_args()
    results, rounds = Results(options), repeats_of(options) + 1
    size = 100 if options.quick else 1000
    source, abstracts = documents(rounds * size)
    sets = {source: [text.full_text for text in abstracts]} | dict([sentences(2 * rounds * size)])
    with TemporaryDirectory() as scratch:
        encoder = resolve_model(options.model).path
        table = options.table or random_table(encoder, Path(scratch))
        for name, texts in sets.items():
            some = len(texts) // rounds
            parts = [texts[start : start + some] for start in range(0, rounds * some, some)]
            measure(results, name, parts, table, encoder)


def random_table(encoder: Path, folder: Path) -> Path:
    """Write a table of random values over the tokenizer of an encoder."""
    StaticModel(TextTokenizer.from_folder(encoder, 512).unframed(512), 256).save(folder)
    return folder


def measure(
    results: Results, source: str, parts: list[list[str]], table: Path, encoder: Path
) -> None:
    """Time each program on each list of texts in ``parts``; the first list is a warm-up."""
    ours, library = Embedder(table, device="cpu"), SentenceTransformer(str(table), device="cpu")
    large = Embedder(encoder, device="cpu", precision="fp32")
    programs: dict[str, Callable[[list[str]], object]] = {
        "ours": ours.encode,
        "library": library.encode,
        "encoder": lambda texts: large.encode(texts[:ENCODED]),
    }
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for texts in parts:
        for name, encode in programs.items():
            count = min(ENCODED, len(texts)) if name == "encoder" else len(texts)
            rates[name].append(processor_rate(count, partial(encode, texts)))
    told = [results.options.peer_python, "-c", PEER, str(table)]
    done = subprocess.run(told, input=json.dumps(parts), stdout=subprocess.PIPE, text=True)
    if done.returncode == 0:
        rates["model2vec"] = json.loads(done.stdout.splitlines()[-1])
    unit = "texts/s of processor time"
    results.add(f"{source}_first", Figure(rates["ours"][0], unit))
    for name, theirs in rates.items():
        if name != "ours":
            results.add(f"{source}_{name}", paired(rates["ours"][1:], theirs[1:], unit=unit))


if __name__ == "__main__":
    main()
