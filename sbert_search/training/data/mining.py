"""Hard negatives: passages that a search finds for an anchor and that are not its positives."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sbert_search.config import to_mapping
from sbert_search.corpus.documents import CorpusReader
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.records import Query
from sbert_search.runtime.cache import digest_of
from sbert_search.runtime.disk import files
from sbert_search.runtime.progress import note, progress
from sbert_search.search.engine import SearchEngine
from sbert_search.search.reranker import Reranker
from sbert_search.training.data.examples import Example

_AT_ONCE = 512  # anchors searched, and scored, between two writes


@dataclass(frozen=True, kw_only=True, slots=True)
class MiningConfig:
    """Which of the passages found become negatives."""

    negatives: int = 0  # added to each row; 0: nothing is mined
    first: int = 1  # rank, positives left out, at which the search begins to be used
    last: int = 50  # rank at which it ends
    margin: float = 0.05  # similarity by which the positive must be ahead
    model: str | None = None  # searches; None: the model that is to be trained
    corpus: Path | None = None  # documents searched beside the positives
    reranker: str | None = None  # cross-encoder that must agree
    reranker_margin: float = 0.0  # score by which the positive must be ahead for it

    def __post_init__(self) -> None:
        if self.negatives < 0:
            raise ConfigError(f"mining.negatives is {self.negatives}; it must not be below 0.")
        if not 1 <= self.first <= self.last:
            raise ConfigError(
                f"mining.first is {self.first} and last {self.last}; ranks rise from 1."
            )


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A text with all its positives, and what was found for it, best first."""

    text: str
    positives: tuple[str, ...]
    found: Sequence[tuple[str, float]]  # passage and similarity

    def negatives(self, config: MiningConfig) -> list[str]:
        """Choose by rank and margin; none, where a positive was not found to compare with."""
        known = dict(self.found)
        floor = min(known.get(positive, -np.inf) for positive in self.positives) - config.margin
        others = [(text, score) for text, score in self.found if text not in self.positives]
        window = others[config.first - 1 : config.last]
        return [text for text, score in window if score <= floor and text != self.text]


def mine_negatives(
    examples: Sequence[Example], config: MiningConfig, model: str, folder: Path, *, device: str
) -> list[Example]:
    """Give pairs (anchor, positive) hard negatives, found by an index of all positives.

    Every passage that is a positive of an anchor is none of its negatives. What was found lies in a
    folder named after all that decides it, and is not computed again; a run that was stopped goes
    on where it was.

    Args:
        examples: Rows of an anchor, its positive, and negatives that are there already.
        config: Which passages to take.
        model: What searches, when ``config.model`` does not say.
        folder: Where index and answers are kept.
        device: Where models compute.

    Returns:
        The examples with up to ``config.negatives`` texts more; how many got fewer is told.

    Raises:
        ModelError: A model cannot be loaded.
        CorpusError: ``config.corpus`` cannot be read.
    """
    positives: dict[str, dict[str, None]] = defaultdict(dict)
    for example in examples:
        positives[example.texts[0]][example.texts[1]] = None
    passages = list(dict.fromkeys(_passages(examples, config)))
    searcher = str(resolve_model(config.model or model).path)
    key = {"mining": to_mapping(config), "model": searcher, "passages": passages}
    place = folder / digest_of([key, {text: list(own) for text, own in positives.items()}])[:16]
    engine = SearchEngine(_index(passages, searcher, place, device))
    reranker = Reranker(config.reranker, device=device) if config.reranker else None
    negatives: dict[str, list[str]] = {}
    anchors = list(positives)
    with progress("Mining", len(anchors), "anchors") as advance:
        for start in range(0, len(anchors), _AT_ONCE):
            some = {
                anchor: tuple(positives[anchor]) for anchor in anchors[start : start + _AT_ONCE]
            }
            file = place / f"negatives-{start:09d}.json"
            if not file.exists():
                mined = _mine(some, passages, engine, reranker, config)
                files.replace_file(file, json.dumps(mined).encode())
            negatives |= json.loads(file.read_bytes())
            advance(len(some))
    return _extended(examples, negatives, config.negatives)


def _passages(examples: Sequence[Example], config: MiningConfig) -> Iterator[str]:
    yield from (example.texts[1] for example in examples)
    if config.corpus is not None:
        for batch in CorpusReader([config.corpus]).batches():
            yield from (document.full_text for document in batch.documents)


def _index(passages: Sequence[str], model: str, place: Path, device: str) -> Index:
    """Open the index of the passages, or build it, or go on building it."""
    source, out = place / "passages.jsonl", place / "passages.index"
    place.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        rows = (json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(passages))
        files.replace_file(source, "".join(f"{row}\n" for row in rows).encode())
    if (out / "MANIFEST.json").exists():
        index = Index.open(out)
        build = index.state.manifest.build
        if build is None or build.finished:
            return index
    return Index.build(source, out=out, model=model, device=device)


def _mine(
    positives: Mapping[str, tuple[str, ...]],
    passages: Sequence[str],
    engine: SearchEngine,
    reranker: Reranker | None,
    config: MiningConfig,
) -> dict[str, list[str]]:
    most = max(map(len, positives.values()))
    queries = [Query(anchor, anchor) for anchor in positives]
    run = engine.run(queries, min(config.last + most + 1, len(passages)))
    chosen = {}
    for anchor, own in positives.items():
        found = [(passages[int(doc_id)], score) for doc_id, score in run[anchor].items()]
        chosen[anchor] = _Anchor(anchor, own, found).negatives(config)
    if reranker is not None:
        chosen = _agreed(positives, chosen, reranker, config)
    return {anchor: texts[: config.negatives] for anchor, texts in chosen.items()}


def _agreed(
    positives: Mapping[str, tuple[str, ...]],
    chosen: Mapping[str, list[str]],
    reranker: Reranker,
    config: MiningConfig,
) -> dict[str, list[str]]:
    """Keep the candidates that the cross-encoder puts below every positive, by its margin."""
    tried = {anchor: texts[: 4 * config.negatives] for anchor, texts in chosen.items()}
    pairs = [(a, text) for a in tried for text in (*positives[a], *tried[a])]
    scores = dict(zip(pairs, reranker.predict(pairs).tolist(), strict=True))
    kept = {}
    for anchor, texts in tried.items():
        least = min(scores[anchor, positive] for positive in positives[anchor])
        floor = least - config.reranker_margin
        kept[anchor] = [text for text in texts if scores[anchor, text] < floor]
    return kept


def _extended(
    examples: Sequence[Example], negatives: Mapping[str, list[str]], wanted: int
) -> list[Example]:
    longer = [replace(e, texts=(*e.texts, *negatives[e.texts[0]])) for e in examples]
    short = sum(len(negatives[example.texts[0]]) < wanted for example in examples)
    if short:
        note(
            f"{short:,} of {len(examples):,} rows got fewer than {wanted} hard negatives; a "
            "smaller mining.margin or a larger mining.last gives more."
        )
    return longer
