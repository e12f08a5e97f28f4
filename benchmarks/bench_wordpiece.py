"""Training a vocabulary of 30,522 word pieces on Wikipedia: time, memory and quality.

Our trainer merges the pairs with the highest gain of likelihood. The peer is the trainer of the
`tokenizers` library, which merges the most frequent pairs. Each trainer runs in its own process.
The quality of a vocabulary has two figures on unseen text: the tokens per word, and the unknown
words per million words. Both are also compared with those of Google's vocabulary for BERT. Words of
more than 100 characters, which are unknown to every vocabulary, are not counted. Name the folder of
the data sets with SBERT_SEARCH_DATA.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from common import ChildRun, Figure, Results, arguments, paired, repeats_of, run_child

from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.vocabulary import bert_tokenizer, read_vocabulary
from sbert_search.text.tokens.words import count_words


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
        rounds: list[dict[str, Training]] = []
        for number in range(repeats_of(options)):
            rounds.append({})
            for algorithm in ("wordpiece", "bpe"):
                out = Path(scratch) / f"{algorithm}-{number}"
                rounds[-1][algorithm] = train(source, vocab_size, algorithm, out)
        add_cost(results, rounds)
        folders = {name: training.out for name, training in rounds[-1].items()}
        folders["google"] = options.data / "bert-base-uncased-vocab"
        add_quality(results, folders, wikipedia / "test.jsonl.xz")


class Training(NamedTuple):
    """One run of `tokenizer train`: its folder, its seconds, and its output and memory."""

    out: Path
    seconds: float
    run: ChildRun


def train(source: Path, vocab_size: int, algorithm: str, out: Path) -> Training:
    """Run the command `tokenizer train`."""
    start = time.perf_counter()
    command = ["tokenizer", "train", str(source), "--vocab-size", str(vocab_size)]
    run = run_child(
        "-m", "sbert_search", *command, "--algorithm", algorithm, "--out", str(out), "--json"
    )
    return Training(out, time.perf_counter() - start, run)


def add_cost(results: Results, rounds: list[dict[str, Training]]) -> None:
    """Add time, memory and size of the vocabulary of both trainers."""
    ours, bpe = ([one[name] for one in rounds] for name in ("wordpiece", "bpe"))
    results.add("train_s", paired([t.seconds for t in ours], [t.seconds for t in bpe], unit="s"))
    mine, theirs = ([t.run.anonymous_mib for t in runs] for runs in (ours, bpe))
    results.add("train_memory_mib", paired(mine, theirs, unit="MiB"))
    pieces, peer_pieces = (runs[-1].run.result["vocab_size"] for runs in (ours, bpe))
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
