"""A sync of a folder in which 1 % of the files changed, against the work that it cannot avoid.

    python benchmarks/bench_sync.py [--quick] [--model M] [--out F.json]

The peer reads and hashes all files, splits the changed ones into the same passages and embeds
these, with the same model, which is loaded already. It does nothing else: it finds, compares,
writes and commits nothing. Both run alternately, each after another 1 % of the files was changed. A
second figure is a sync in which nothing changed; its peer reads and hashes all files. The build of
the index is not counted.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import numpy as np
from common import Results, arguments, compare, repeats_of, seconds
from texts import documents

from sbert_search.embed.protocol import TextEmbedder
from sbert_search.index.building.model_check import as_embedder
from sbert_search.index.index import Index
from sbert_search.text.tokens.chunking import AT_BORDERS

FILES, QUICK_FILES = 10_000, 500
SHARE = 0.01  # of the files that change before each measurement
FILES_A_FOLDER = 100


class Notes:
    """A folder of files, some of which change.

    Attributes:
        folder: The folder.
        paths: Its files.
        changed: The files that changed last.
    """

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self.folder, self.paths, self.changed = folder, list[Path](), list[Path]()
        self.source, corpus = documents(count)
        self._texts = [document.full_text for document in corpus]
        self._rng, self._version = np.random.default_rng(seed), 0
        for number in range(count):
            path = folder / f"{number // FILES_A_FOLDER:03d}" / f"{number:06d}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._text(number), encoding="utf-8")
            self.paths.append(path)

    def change(self) -> None:
        """Give 1 % of the files a new text of about the same length."""
        self._version += 1
        chosen = self._rng.choice(len(self.paths), int(SHARE * len(self.paths)), replace=False)
        self.changed = [self.paths[number] for number in chosen]
        for number, path in zip(chosen.tolist(), self.changed, strict=True):
            path.write_text(self._text(number), encoding="utf-8")

    def _text(self, number: int) -> str:
        text = self._texts[number % len(self._texts)]
        return f"# Note {number}, version {self._version}\n\n{text}\n"


def read_all(notes: Notes) -> None:
    """Read and hash every file."""
    for path in notes.paths:
        hashlib.sha256(path.read_bytes()).digest()


def unavoidable(notes: Notes, embedder: TextEmbedder) -> None:
    """Read and hash every file, and embed the passages of the changed ones."""
    read_all(notes)
    texts = [path.read_text(encoding="utf-8") for path in notes.changed]
    spans = [embedder.split(text, task="document", chunking=AT_BORDERS) for text in texts]
    passages = [text[a:b] for text, cuts in zip(texts, spans, strict=True) for a, b in cuts]
    embedder.encode_document(passages)


def main() -> None:
    """Measure, print and write the figures."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--model", help="default: the installed model; 'hashing' for no model")
    options = parser.parse_args()
    results, count = Results(options), QUICK_FILES if options.quick else FILES
    embedder = as_embedder(options.model)
    with tempfile.TemporaryDirectory(prefix="bench-sync-") as scratch:
        notes = Notes(Path(scratch, "notes"), count, options.seed)
        index = Index.build(notes.folder, out=Path(scratch, "index"), model=embedder)

        def sync(n_changed: int) -> None:
            report = index.sync(notes.folder, model=embedder)
            assert (len(report.replaced), report.changes) == (n_changed, n_changed)

        def ours() -> float:
            notes.change()
            return seconds(lambda: sync(len(notes.changed)))

        def peer() -> float:
            notes.change()
            took = seconds(lambda: unavoidable(notes, embedder))
            index.sync(notes.folder, model=embedder)
            return took

        repeats = repeats_of(options)
        results.add(f"sync_{count}_files", compare(ours, peer, unit="s", repeats=repeats))
        figure = compare(
            lambda: seconds(lambda: sync(0)),
            lambda: seconds(lambda: read_all(notes)),
            unit="s",
            repeats=repeats,
        )
        results.add(f"sync_{count}_files_unchanged", figure)


if __name__ == "__main__":
    main()
