"""Draw the pictures of the overview and the concept pages: python docs/_site/pictures.py.

Boxes and arrows on a fixed grid, as SVG text: no font, script or library is needed to see them.
Each has a background of its own, so it can be read on a page of any colour, and dark colours where
the reader's system is dark.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1]
LIGHT = {  # fill and stroke
    "data": ("#e3f2fd", "#1565c0"),
    "work": ("#f3e5f5", "#6a1b9a"),
    "file": ("#e8f5e9", "#2e7d32"),
    "warn": ("#fff3e0", "#e65100"),
    "page": ("#fff", "none"),
}
DARK = {
    "data": ("#12293f", "#64b5f6"),
    "work": ("#2c1a36", "#ce93d8"),
    "file": ("#16301a", "#81c784"),
    "warn": ("#3a2408", "#ffb74d"),
    "page": ("#1e2129", "none"),
}


@dataclass(frozen=True)
class Box:
    """A box with a bold title and lines below it.

    Attributes:
        x: Left edge; `y` is the upper one.
        width: Its height follows from the number of lines.
        kind: Which of the colours it has.
    """

    x: int
    y: int
    width: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        """How much room title and lines take."""
        return 34 + 18 * len(self.lines)

    @property
    def top(self) -> tuple[int, int]:
        """Middle of the upper edge."""
        return self.x + self.width // 2, self.y

    @property
    def bottom(self) -> tuple[int, int]:
        """Middle of the lower edge."""
        return self.x + self.width // 2, self.y + self.height

    @property
    def left(self) -> tuple[int, int]:
        """Middle of the left edge."""
        return self.x, self.y + self.height // 2

    @property
    def right(self) -> tuple[int, int]:
        """Middle of the right edge."""
        return self.x + self.width, self.y + self.height // 2

    def draw(self) -> str:
        """Give the SVG of the box."""
        middle = self.x + self.width // 2
        rows = [
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6" '
            f'class="{self.kind}"/>',
            f'<text x="{middle}" y="{self.y + 22}" font-weight="600">{escape(self.title)}</text>',
        ]
        for place, line in enumerate(self.lines):
            y = self.y + 41 + 18 * place
            rows.append(f'<text x="{middle}" y="{y}" class="s">{escape(line)}</text>')
        return "\n".join(rows)


def arrow(start: tuple[int, int], end: tuple[int, int], label: str = "") -> str:
    """Draw an arrow, with a label beside its middle."""
    (x1, y1), (x2, y2) = start, end
    line = f'<path d="M{x1} {y1}L{x2} {y2}" class="a" marker-end="url(#h)"/>'
    if not label:
        return line
    x, y = (x1 + x2) // 2, (y1 + y2) // 2
    return f'{line}\n<text x="{x + 8}" y="{y + 4}" class="s l">{escape(label)}</text>'


def svg(title: str, width: int, height: int, parts: list[Box | str]) -> str:
    """Put a picture together; `title` is what a screen reader says."""
    body = "\n".join(part.draw() if isinstance(part, Box) else part for part in parts)
    dark = style(DARK, text="#e8e8e8", small="#bbb", line="#aaa")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(title)}</title>
<style>text{{font:14px system-ui,sans-serif;text-anchor:middle}}
.s{{font-size:12px}}.l{{text-anchor:start}}.a{{fill:none;stroke-width:1.5}}
{style(LIGHT, text="#1a1a1a", small="#444", line="#555")}
@media (prefers-color-scheme:dark){{{dark}}}</style>
<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"
orient="auto"><path d="M0 0L8 4L0 8z" class="h"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" class="page"/>
{body}
</svg>
"""


def style(colours: dict[str, tuple[str, str]], *, text: str, small: str, line: str) -> str:
    """Write the colours as CSS rules."""
    kinds = (f".{kind}{{fill:{f};stroke:{s}}}" for kind, (f, s) in colours.items())
    return (
        "".join(kinds)
        + f"text{{fill:{text}}}.s{{fill:{small}}}.a{{stroke:{line}}}.h{{fill:{line}}}"
    )


def chain() -> str:
    """From raw text to judged rankings, each step with its command."""
    steps = (
        ("data", "Raw text", "your documents", "JSONL, CSV, Parquet"),
        ("work", "WordPiece vocabulary", "tokenizer train", "from your own text"),
        ("work", "Pre-trained encoder", "pretrain", "BERT and relatives"),
        ("work", "Bi-encoder", "train bi-encoder", "one vector a text"),
        ("file", "FAISS index + words", "index build", "updates, filters"),
        ("work", "Hybrid search", "search --mode hybrid", "meaning and words"),
        ("work", "Reranking", "search --rerank", "by a cross-encoder"),
        ("data", "Evaluation", "eval retrieval", "nDCG, significance"),
    )
    boxes = [
        Box(20 + 186 * (i % 4), 20 + 130 * (i // 4), 168, kind, title, (command, note))
        for i, (kind, title, command, note) in enumerate(steps)
    ]
    return svg(
        "From raw text to a search engine: raw text, WordPiece vocabulary, pre-trained encoder, "
        "bi-encoder, FAISS index and words, hybrid search, cross-encoder reranking, evaluation",
        766,
        240,
        [
            *boxes,
            *(arrow(a.right, b.left) for a, b in pairwise(boxes[:4])),
            *(arrow(a.right, b.left) for a, b in pairwise(boxes[4:])),
            arrow((60, boxes[0].bottom[1]), (60, boxes[4].y), "documents"),
            '<path d="M662 90L662 120L150 120L150 149" class="a" marker-end="url(#h)"/>',
            '<text x="406" y="115" class="s">vectors</text>',
        ],
    )


def text_flow() -> str:
    """From a source to an index, and from a query to hits."""
    source = Box(20, 20, 270, "data", "Source", ("JSONL, CSV, Parquet, text, BEIR",))
    read = Box(20, 100, 270, "work", "Read and check rows", ("bad rows: file, line, reason",))
    split = Box(20, 180, 270, "work", "Tokenise", ("cut, refuse or split into passages",))
    embed = Box(20, 260, 125, "work", "Embed", ("model", "vector"))
    count = Box(165, 260, 125, "work", "Count words", ("stemmer", "postings"))
    index = Box(20, 370, 270, "file", "Index on disk", ("documents, vectors, words, FAISS",))
    query = Box(350, 20, 270, "data", "Query", ("text, k, mode, filter",))
    mask = Box(350, 100, 270, "work", "Filter", ("which documents may be found",))
    dense = Box(350, 180, 125, "work", "Dense", ("nearest vectors", "exact scores"))
    lexical = Box(495, 180, 125, "work", "Lexical", ("BM25", "exact scores"))
    fuse = Box(350, 290, 270, "work", "Fuse, then rerank", ("a cross-encoder, if given",))
    hits = Box(350, 370, 270, "data", "Hits", ("document, score, rank in every stage",))
    return svg(
        "How a text becomes a hit",
        640,
        444,
        [
            *(source, read, split, embed, count, index, query, mask, dense, lexical, fuse, hits),
            arrow(source.bottom, read.top),
            arrow(read.bottom, split.top),
            arrow((82, split.bottom[1]), embed.top),
            arrow((227, split.bottom[1]), count.top),
            arrow(embed.bottom, (82, 370)),
            arrow(count.bottom, (227, 370)),
            arrow(query.bottom, mask.top),
            arrow((412, mask.bottom[1]), dense.top),
            arrow((557, mask.bottom[1]), lexical.top),
            arrow(dense.bottom, (412, 290)),
            arrow(lexical.bottom, (557, 290)),
            arrow(fuse.bottom, hits.top),
            '<path d="M290 396L320 396L320 215L349 215" class="a" marker-end="url(#h)"/>',
        ],
    )


def index_on_disk() -> str:
    """The manifest, the files it names and what is derived from what."""
    manifest = Box(200, 20, 240, "file", "MANIFEST.json", ("names every file, its size and hash",))
    docs = Box(20, 120, 140, "data", "seg/*.docs.arrow", ("documents", "and passages"))
    vectors = Box(180, 120, 130, "data", "seg/*.vec.npy", ("vectors", "one per passage"))
    ids = Box(330, 120, 130, "data", "seg/*.ids.npy", ("hashes of ids", "and content"))
    deleted = Box(480, 120, 140, "data", "del/*.npy", ("rows deleted", "or replaced"))
    lex = Box(20, 260, 140, "work", "lex/*.npy", ("postings", "for BM25"))
    ann = Box(180, 260, 130, "work", "ann/*.faiss", ("FAISS index", "from 50,000 rows"))
    note = Box(330, 260, 290, "warn", "Derived files", ("damaged: made again", "by index repair"))
    return svg(
        "The files of an index",
        640,
        350,
        [
            *(manifest, docs, vectors, ids, deleted, lex, ann, note),
            arrow((240, 72), (100, 119)),
            arrow((300, 72), (250, 119)),
            arrow((340, 72), (390, 119)),
            arrow((400, 72), (545, 119)),
            arrow(docs.bottom, lex.top, "counted"),
            arrow(vectors.bottom, ann.top, "trained"),
        ],
    )


def promises() -> str:
    """A commit in time: where a crash leaves the old state and where the new one."""
    names = (
        ("Write files", "new names only"),
        ("fsync", "files, then folders"),
        ("Rename", "MANIFEST.json"),
        ("fsync folder", "then report success"),
    )
    boxes = [
        Box(20 + 155 * place, 90, 135, "file" if place == 2 else "work", title, (line,))
        for place, (title, line) in enumerate(names)
    ]
    old = Box(
        20, 190, 290, "warn", "A crash here: the old state", ("partial files are removed later",)
    )
    new = Box(485, 190, 135, "data", "A crash here:", ("the new state",))
    both = Box(330, 190, 135, "warn", "A crash here:", ("old or new, whole",))
    readers = Box(20, 20, 600, "data", "Readers keep the state they opened; no file is changed")
    return svg(
        "The steps of a commit",
        640,
        264,
        [
            readers,
            *boxes,
            *(arrow(a.right, b.left) for a, b in pairwise(boxes)),
            *(old, both, new),
            arrow((165, 190), (165, 144)),
            arrow(both.top, boxes[2].bottom),
            arrow(new.top, boxes[3].bottom),
        ],
    )


PICTURES = {
    "chain.svg": chain,
    "concepts/text-flow.svg": text_flow,
    "concepts/index-on-disk.svg": index_on_disk,
    "concepts/promises.svg": promises,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
