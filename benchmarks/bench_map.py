"""Time and memory to map 101,216 documents, and how well layouts keep nearest neighbours.

    python benchmarks/bench_map.py [--quick] [--index DIR] [--layouts N] [--chromium PROGRAM]
                                   [--out F.json]

Without --index, the index has paragraphs of Wikipedia or, without SBERT_SEARCH_DATA, numbered
sentences of docstrings. Their vectors are made by hashing words, so documents with common words are
near each other. Building the index is not measured. The map is made with a memory limit of 2 GiB in
a process of its own.

--layouts N compares t-SNE as the map uses it with the layouts of umap-learn, PaCMAP and
scikit-learn, if they are installed, on N of the vectors. umap-learn gets the same neighbours; the
others find their own. A neighbour is kept if it is among the 15 nearest in the layout, too.

--chromium counts the frames that the page draws each second while it zooms in and out, and the
points of these frames, in this program without a window and with software rendering. It needs
`playwright`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
from common import Figure, Results, arguments, run_child
from numpy.typing import NDArray
from texts import paragraphs

from sbert_search.base.memory import set_memory_limit
from sbert_search.index.index import Index
from sbert_search.lab.map.layout import Neighbours, nearest, neighbour_layout, principal_axes
from sbert_search.lab.map.making import choose_documents, document_vectors, map_index
from sbert_search.lab.map.saving import PAGE, write_map

N_DOCS, MEMORY, NEAREST = 101_216, 2 << 30, 15
FRAMES_S = 5
# Zoom in and out for some seconds; return the frames a second, and the mean number of points of a
# frame. Reading a pixel of a frame waits until it is drawn.
ZOOM = """async (seconds) => {
  const canvas = document.getElementById("map"), gl = canvas.getContext("webgl2");
  const { x, y, width, height } = canvas.getBoundingClientRect();
  const start = performance.now(), pixel = new Uint8Array(4);
  let [frames, points] = [0, 0];
  const draw = gl.drawElements;
  gl.drawElements = (mode, count, ...given) => {
    points += count;
    draw.call(gl, mode, count, ...given);
  };
  while (performance.now() - start < 1000 * seconds) {
    const place = { clientX: x + width / 2, clientY: y + height / 2 };
    const deltaY = frames % 20 < 10 ? -40 : 40;
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY, ...place, cancelable: true }));
    await new Promise(requestAnimationFrame);
    gl.readPixels(width / 2, height / 2, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    frames++;
  }
  gl.drawElements = draw;
  return [1000 * frames / (performance.now() - start), points / frames];
}"""

Floats = NDArray[np.float32]
Layout = Callable[[Floats, Neighbours, int], Floats]


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--index", type=Path, help="an index; default: one with hashed vectors")
    layouts = "compare layouts of N documents"
    parser.add_argument("--layouts", type=int, default=0, metavar="N", help=layouts)
    parser.add_argument("--chromium", type=Path, help="count the page's frames in this Chromium")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drawn", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(make_map(options.child, options.drawn, options.seed)))
        return
    results = Results(options)
    with tempfile.TemporaryDirectory() as scratch:
        index = options.index or Path(scratch) / "hashed.index"
        if options.index is None:
            build(index, 5_000 if options.quick else N_DOCS)
        results.add("documents", Figure(Index.open(index).state.n_docs, "docs"))
        if options.layouts:
            compare_layouts(results, index, options.layouts, options.seed)
        else:
            drawn = Path(scratch) / "map"
            told = ("--child", str(index), "--drawn", str(drawn), "--seed", str(options.seed))
            run = run_child(__file__, *told)
            for name, unit in (("map", "s"), ("write", "s"), ("page", "MiB")):
                results.add(name, Figure(run.result[name], unit))
            results.add("anonymous_memory", Figure(run.anonymous_mib, "MiB"))
            if options.chromium:
                frames, points = frames_of(drawn / PAGE, options.chromium)
                results.add("frames", Figure(frames, "1/s"))
                results.add("points_of_a_frame", Figure(points, "points"))


def build(path: Path, count: int) -> None:
    """Index paragraphs of Wikipedia."""
    rows = ({"_id": str(i), "text": text} for i, text in enumerate(paragraphs(count)))
    Index.build(rows, out=path, model="hashing", lexical=None, on_truncate="warn")


def make_map(index: Path, out: Path, seed: int) -> dict[str, float]:
    """Make and write a map; return seconds and the size of the page in MiB."""
    set_memory_limit(MEMORY)
    start = time.perf_counter()
    drawn = map_index(index, points=N_DOCS, seed=seed)
    made = time.perf_counter()
    page = write_map(drawn, out, parquet=True)[0]
    written, size = time.perf_counter(), page.stat().st_size
    return {"map": made - start, "write": written - made, "page": size / 2**20}


def frames_of(page: Path, chromium: Path) -> tuple[float, float]:
    """Return the frames a second of a page that zooms in and out, and the points of a frame."""
    from playwright.sync_api import sync_playwright

    software = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=software)
        opened = browser.new_page(viewport={"width": 1200, "height": 800})
        opened.goto(page.resolve().as_uri())
        opened.locator(":root[data-ready]").wait_for(state="attached")
        opened.evaluate(ZOOM, 1)  # a warm-up
        frames, points = opened.evaluate(ZOOM, FRAMES_S)
        browser.close()
    return frames, points


def compare_layouts(results: Results, index: Path, count: int, seed: int) -> None:
    """Measure the seconds of each layout, and the share of the nearest documents that it keeps."""
    state = Index.open(index).state
    vectors = document_vectors(state, choose_documents(state, count, seed))
    near = nearest(vectors, NEAREST, "cosine")
    layouts: dict[str, Layout] = {
        "principal_axes": lambda v, near, seed: principal_axes(v),
        "opentsne": lambda v, near, seed: neighbour_layout(near, principal_axes(v), seed),
        "umap": _umap,
        "pacmap": _pacmap,
        "scikit_learn_tsne": _scikit_learn,
    }
    for name, lay_out in layouts.items():
        start = time.perf_counter()
        try:
            layout = lay_out(vectors, near, seed)
        except ImportError as error:
            print(f"{name}: {error}")
            continue
        results.add(f"{name}_time", Figure(time.perf_counter() - start, "s"))
        results.add(f"{name}_kept", Figure(kept(near, layout), "share"))


def kept(near: Neighbours, layout: Floats) -> float:
    """Share of a document's NEAREST neighbours that are among those in a layout, too."""
    found = nearest(np.ascontiguousarray(layout, np.float32), NEAREST, "euclidean").at
    hits = [len(np.intersect1d(a, b)) for a, b in zip(near.at, found, strict=True)]
    return float(np.mean(hits)) / NEAREST


def _umap(vectors: Floats, near: Neighbours, seed: int) -> Floats:
    """UMAP wants each document as its own first neighbour, and distances."""
    umap = import_module("umap")
    rows = np.arange(len(vectors))
    at = np.column_stack([rows, near.at])
    distances = np.column_stack([np.zeros(len(rows)), 1 - near.scores]).astype(np.float32)
    model = umap.UMAP(
        n_neighbors=NEAREST + 1, random_state=seed, precomputed_knn=(at, distances, None), n_jobs=1
    )
    layout: Floats = model.fit_transform(vectors)
    return layout


def _pacmap(vectors: Floats, near: Neighbours, seed: int) -> Floats:
    layout: Floats = import_module("pacmap").PaCMAP(random_state=seed).fit_transform(vectors)
    return layout


def _scikit_learn(vectors: Floats, near: Neighbours, seed: int) -> Floats:
    manifold = import_module("sklearn.manifold")
    layout: Floats = manifold.TSNE(random_state=seed, metric="cosine").fit_transform(vectors)
    return layout


if __name__ == "__main__":
    main()
