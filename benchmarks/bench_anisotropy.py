"""Time of an analysis of anisotropy, against encoding the same sentences in fp32.

    python benchmarks/bench_anisotropy.py [--quick] [--model MODEL] [--out F.json]

Both read 10,000 sentences of STSb (--quick: 1,000), or first lines of docstrings. "Ours" is the
analysis of all layers with the remedies and without tasks, and "peer" is `Embedder.encode`; each
opens the model. MODEL is a name or a folder; the default is the model of `Embedder`.
"""

from __future__ import annotations

from functools import partial

from common import Figure, Results, arguments, compare, repeats_of, seconds
from texts import sentences

from sbert_search import Embedder, analyze_anisotropy
from sbert_search.base.progress import set_progress

N_SENTENCES, QUICK_SENTENCES = 10_000, 1_000


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--model", help="name or folder")
    options = parser.parse_args()
    results = Results(options)
    set_progress("off")
    _, texts = sentences(QUICK_SENTENCES if options.quick else N_SENTENCES)
    results.add("sentences", Figure(len(texts), "texts"))

    def analyse() -> None:
        analyze_anisotropy(options.model, texts, device="cpu", most_texts=len(texts))

    def encode() -> None:
        Embedder(options.model, device="cpu", precision="fp32").encode(texts)

    ours, peer = partial(seconds, analyse), partial(seconds, encode)
    repeats = repeats_of(options)
    results.add("analysis", compare(ours, peer, unit="s", repeats=repeats, warm_up=False))


if __name__ == "__main__":
    main()
