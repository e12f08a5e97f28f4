"""Training a vocabulary of 30,522 word pieces on Wikipedia: time, memory and quality.

Our trainer merges the pairs with the highest gain of likelihood. The peer is the trainer of the
`tokenizers` library, which merges the most frequent pairs. Each trainer runs in its own process.
The quality of a vocabulary has two figures on unseen text: the tokens per word, and the unknown
words per million words. Both are also compared with those of Google's vocabulary for BERT. Name the
folder of the data sets with SBERT_SEARCH_DATA.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from common import ChildRun, Figure, Results, arguments, run_child

from sbert_search.corpus.documents import CorpusReader
from sbert_search.tokens.vocabulary import bert_tokenizer, read_vocabulary
from sbert_search.tokens.words import count_words


def main() -> None:
    """Measure, print the figures and write the result file."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("SBERT_SEARCH_DATA"),
        help="folder of the data sets; default: SBERT_SEARCH_DATA",
    )
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of the data sets with --data or SBERT_SEARCH_DATA")
    wikipedia = options.data / "wikipedia-en-2014"
    source, vocab_size = (
        (wikipedia / "valid.jsonl.xz", 8_000)
        if options.quick
        else (wikipedia / "train-*.jsonl.xz", 30_522)
    )
    results = Results(options)
    with tempfile.TemporaryDirectory() as scratch:
        runs, folders = {}, {"google": options.data / "bert-base-uncased-vocab"}
        for algorithm in ("wordpiece", "bpe"):
            folders[algorithm] = Path(scratch) / algorithm
            runs[algorithm] = train(source, vocab_size, algorithm, folders[algorithm])
        add_cost(results, runs)
        add_quality(results, folders, wikipedia / "test.jsonl.xz")
    results.write()


def train(source: Path, vocab_size: int, algorithm: str, out: Path) -> tuple[float, ChildRun]:
    """Run the command `tokenizer train`; return its seconds, and its output and memory."""
    start = time.perf_counter()
    command = ["tokenizer", "train", str(source), "--vocab-size", str(vocab_size)]
    run = run_child(
        "-m", "sbert_search", *command, "--algorithm", algorithm, "--out", str(out), "--json"
    )
    return time.perf_counter() - start, run


def add_cost(results: Results, runs: dict[str, tuple[float, ChildRun]]) -> None:
    """Add time, memory and size of the vocabulary of both trainers."""
    (seconds, run), (peer_seconds, peer) = runs["wordpiece"], runs["bpe"]
    results.add("train_s", Figure(seconds, "s", peer_seconds, seconds / peer_seconds))
    mine, theirs = run.anonymous_mib, peer.anonymous_mib
    results.add("train_memory_mib", Figure(mine, "MiB", theirs, mine / theirs))
    pieces, peer_pieces = run.result["vocab_size"], peer.result["vocab_size"]
    results.add("pieces", Figure(pieces, "pieces", peer_pieces, pieces / peer_pieces))


def add_quality(results: Results, folders: dict[str, Path], held_out: Path) -> None:
    """Compare the vocabularies on unseen text: tokens per word, and unknown words in a million."""
    measured = {name: word_statistics(folder, held_out) for name, folder in folders.items()}
    ours, bpe = measured["wordpiece"], measured["bpe"]
    units = ("tokens/word", "per million words")
    for index, name in enumerate(("tokens_a_word", "unknown_words")):
        ratio = ours[index] / bpe[index] if bpe[index] else None
        results.add(f"{name}_against_bpe", Figure(ours[index], units[index], bpe[index], ratio))
        google = measured["google"][index]
        ratio = ours[index] / google if google else None
        results.add(f"{name}_against_google", Figure(ours[index], units[index], google, ratio))


def word_statistics(folder: Path, held_out: Path) -> tuple[float, float]:
    """Tokenise a text; return the tokens per word, and the [UNK] words per million words."""
    vocabulary, rules = read_vocabulary(folder)
    texts = ([d.text for d in batch.documents] for batch in CorpusReader([held_out]).batches())
    words = count_words(texts, rules)
    model = bert_tokenizer(vocabulary, rules).model
    n_tokens = n_unknown = 0
    for word, count in words.items():
        pieces = [token.value for token in model.tokenize(word)]
        n_tokens += count * len(pieces)
        n_unknown += count * (pieces == ["[UNK]"])
    n_words = sum(words.values())
    return n_tokens / n_words, 1e6 * n_unknown / n_words


if __name__ == "__main__":
    main()
