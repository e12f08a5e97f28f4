"""What other models add to training data: mined hard negatives, and targets of a teacher."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.cache import digest_of
from sbert_search.base.progress import progress, warn
from sbert_search.base.seed import generator
from sbert_search.config import to_mapping
from sbert_search.declared import Bounds, check
from sbert_search.embed.cache import MAX_BYTES, CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError, TrainingError
from sbert_search.index.index import Index
from sbert_search.models.loading.folder import read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.records import Query
from sbert_search.search.engine import SearchEngine
from sbert_search.search.rerankers import Reranker
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.data.examples import Example
from sbert_search.train.data.text_dataset import TextRows
from sbert_search.train.data.token_table import token_key

_TOKENIZED_AT_ONCE = 4096  # texts
_DRAWS = 4  # random passages drawn for each one that is needed, before all are tried
_AT_ONCE = 512  # number of anchors whose results are written to disk together
# Texts that the teacher embeds together. Their vectors are cached together, and so have the same
# bits after a kill: a model can round differently in another batch.
_TAUGHT_AT_ONCE = 1024

Key = Callable[[str], object]
"""Function that returns equal values for texts that a model reads as the same tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MiningConfig:
    """Which retrieved passages become negatives."""

    negatives: Annotated[int, Bounds(0)] = 0  # number added to each row; 0: no mining
    first: Annotated[int, Bounds(1)] = 1  # first rank used; anchor and positives have none
    last: int = 50  # last search rank used
    margin: float = 0.05  # minimum difference in similarity, positive minus negative
    model: str | Path | None = None  # search model; None: the model to be trained
    corpus: Path | None = None  # documents searched in addition to the positives
    reranker: str | Path | None = None  # cross-encoder that must score negatives below positives
    reranker_margin: float = 0.0  # like margin, for scores of the reranker

    def __post_init__(self) -> None:
        check(self, table="mining.")
        if self.first > self.last:
            raise ConfigError(
                f"mining.first is {self.first} and mining.last {self.last}; use first <= last."
            )


class _TokenKeys:
    """Keys of texts with a prompt: hashes of their tokens."""

    def __init__(self, tokenizer: TextTokenizer, prompt: str) -> None:
        self._tokenizer, self._prompt = tokenizer, prompt
        self._keys: dict[str, bytes] = {}

    def add(self, texts: Iterable[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._keys]
        for start in range(0, len(new), _TOKENIZED_AT_ONCE):
            part = new[start : start + _TOKENIZED_AT_ONCE]
            ids = self._tokenizer.encode([self._prompt + text for text in part])[0]
            self._keys |= {
                text: token_key(np.array(own, dtype=np.int32))
                for text, own in zip(part, ids, strict=True)
            }

    def __call__(self, text: str) -> bytes:
        if text not in self._keys:
            self.add([text])
        return self._keys[text]


def choose_negatives(
    anchor: str,
    positives: Sequence[str],
    hits: Sequence[tuple[str, float]],
    related: Collection[str],
    config: MiningConfig,
    key: Key,
) -> list[str]:
    """Choose hits by rank and margin; return none if a positive is not among the hits.

    ``hits`` are passages with their similarities, best first; ``related`` are further texts that
    may not become negatives. The anchor itself, its positives, related texts and hits that equal a
    better hit are removed before the ranks are counted. See "A mined negative ranks below its
    positive" in docs/decisions.md.
    """
    scores = dict(hits)
    limit = min(scores.get(positive, -np.inf) for positive in positives) - config.margin
    known = {key(text) for text in (anchor, *positives, *related)}
    first = {key(text): (text, score) for text, score in reversed(hits)}
    others = [first[key(text)] for text, _ in hits if text == first[key(text)][0]]
    window = [hit for hit in others if key(hit[0]) not in known][config.first - 1 : config.last]
    return [text for text, score in window if score <= limit]


def mine_negatives(
    examples: Sequence[Example],
    config: MiningConfig,
    model: str | Path,
    folder: Path,
    *,
    device: str,
    tokenizer: TextTokenizer,
    prompts: tuple[str, str] = ("", ""),
    seed: int = 0,
    others: Iterable[Example] = (),
) -> list[Example]:
    """Search passages for the anchor of each example, and add them as hard negatives.

    The search covers the positives of all examples and the documents of ``config.corpus``. An
    anchor never gets one of its positives, also of ``others`` (rows of other files), or a text of
    its group as a negative, and a row never gets a text that it already has. Texts are equal if
    they are the same tokens. A row that gets too few hard negatives is filled up with random
    positives of other rows; it has fewer than ``config.negatives`` only if there are no other
    passages.

    ``tokenizer`` is that of the model that is trained; ``prompts`` are of the anchor and of the
    other texts. Results of the search are cached in a subfolder of ``folder``, named after a hash
    of the texts, the settings and the models, weights included, so an interrupted run resumes where
    it stopped.
    """
    positives: dict[str, dict[str, None]] = defaultdict(dict)
    for example in examples:
        positives[example.texts[0]][example.texts[1]] = None
    related = _related(examples, others, _TokenKeys(tokenizer, prompts[0]))
    key = _TokenKeys(tokenizer, prompts[1])
    passages = list(dict.fromkeys(_passages(examples, config)))
    search_model = str(resolve_model(config.model or model).path)
    # A mined text may already be a negative of its row. So as many more texts are mined as the row
    # with the most negatives has.
    count = config.negatives + max((len(example.texts) - 2 for example in examples), default=0)
    search = {"mining": to_mapping(config), "model": _state(search_model), "passages": passages}
    if config.reranker:
        search["reranker"] = _state(config.reranker)
    # Each result file holds a range of consecutive anchors, so the digest must depend on the order
    # of the anchors. JSON keeps that order.
    known = [[a, list(own), sorted(related[a])] for a, own in positives.items()]
    cache = folder / digest_of([search, count, known])[:16]
    reranker = _opened(config.reranker, device) if config.reranker else None
    engine = SearchEngine(_index(passages, search_model, cache, device), device=device)
    negatives: dict[str, list[str]] = {}
    anchors = list(positives)
    with progress("Mining", len(anchors), "anchors") as advance:
        for start in range(0, len(anchors), _AT_ONCE):
            part = {
                anchor: tuple(positives[anchor]) for anchor in anchors[start : start + _AT_ONCE]
            }
            file = cache / f"negatives-{start:09d}.json"
            if not file.exists():
                mined = _mine(part, related, passages, engine, reranker, config, count, key)
                files.replace_file(file, json.dumps(mined).encode())
            negatives |= json.loads(file.read_bytes())
            advance(len(part))
    return _with_negatives(examples, negatives, related, config.negatives, seed, key)


def _related(
    examples: Sequence[Example], others: Iterable[Example], key: _TokenKeys
) -> dict[str, frozenset[str]]:
    """Return for each anchor the positives of all equal anchors, and the texts of their groups."""
    every = [*examples, *others]
    key.add(example.texts[0] for example in every)
    groups: dict[str, set[str]] = defaultdict(set)
    for example in examples:
        if example.group:
            groups[example.group].update(example.texts[:2])
    related: dict[bytes, set[str]] = defaultdict(set)
    for example in every:
        related[key(example.texts[0])].add(example.texts[1])
    for example in examples:
        related[key(example.texts[0])] |= groups.get(example.group, set())
    # Equal anchors share one set.
    frozen = {of_anchor: frozenset(texts) for of_anchor, texts in related.items()}
    return {example.texts[0]: frozen[key(example.texts[0])] for example in examples}


def _opened(model: str | Path, device: str) -> Reranker:
    reranker = Reranker(model, device=device)
    if reranker.num_labels != 1:
        raise ConfigError(
            f"mining.reranker is {model}, which has {reranker.num_labels} labels and so no single "
            "score of a pair; use a model with one label."
        )
    return reranker


def _state(model: str | Path) -> dict[str, object]:
    folder = read_folder(resolve_model(model).path)
    return {
        "path": str(folder.path),
        "description": to_mapping(folder.description),
        "transformer": dict(folder.transformer),
        "weights": folder.weights_sha256(),
        "tokenizer": folder.tokenizer_sha256(),
    }


def _passages(examples: Sequence[Example], config: MiningConfig) -> Iterator[str]:
    yield from (example.texts[1] for example in examples)
    if config.corpus is not None:
        for batch in CorpusReader([config.corpus]).batches():
            yield from (document.full_text for document in batch.documents)


def _index(passages: Sequence[str], model: str, cache: Path, device: str) -> Index:
    """Open the index of the passages; if it is not finished, build it or resume its build."""
    source, out = cache / "passages.jsonl", cache / "passages.index"
    cache.mkdir(parents=True, exist_ok=True)
    if not source.exists():
        rows = (json.dumps({"_id": str(n), "text": text}) for n, text in enumerate(passages))
        files.replace_file(source, "".join(f"{row}\n" for row in rows).encode())
    if (out / "MANIFEST.json").exists():
        index = Index.open(out)
        build = index.state.manifest.build
        if build is None or build.finished:
            return index
    return Index.build(source, out=out, model=model, device=device, on_truncate="warn")


def _mine(
    positives: Mapping[str, tuple[str, ...]],
    related: Mapping[str, frozenset[str]],
    passages: Sequence[str],
    engine: SearchEngine,
    reranker: Reranker | None,
    config: MiningConfig,
    count: int,
    key: _TokenKeys,
) -> dict[str, list[str]]:
    """Return up to ``count`` negatives for each anchor, best first."""
    most = max(len(related[anchor].union(own)) for anchor, own in positives.items())
    queries = [Query(anchor, anchor) for anchor in positives]
    # Ask for more hits, since the search also finds the anchor itself and its positives.
    run = engine.run(queries, min(config.last + most + 1, len(passages)), mode="dense")
    key.add(passages[int(doc_id)] for hits in run.values() for doc_id in hits)
    chosen = {}
    for anchor, own in positives.items():
        hits = [(passages[int(doc_id)], score) for doc_id, score in run[anchor].items()]
        chosen[anchor] = choose_negatives(anchor, own, hits, related[anchor], config, key)
    if reranker is not None:
        # Scoring is slow, so only the first candidates are scored.
        first = {anchor: texts[: 4 * count] for anchor, texts in chosen.items()}
        chosen = _agreed(positives, first, reranker, config)
    return {anchor: texts[:count] for anchor, texts in chosen.items()}


def _agreed(
    positives: Mapping[str, tuple[str, ...]],
    chosen: Mapping[str, list[str]],
    reranker: Reranker,
    config: MiningConfig,
) -> dict[str, list[str]]:
    """Keep candidates that the reranker scores below all positives by more than the margin."""
    pairs = [(a, text) for a in chosen for text in (*positives[a], *chosen[a])]
    scores = dict(zip(pairs, reranker.predict(pairs).tolist(), strict=True))
    kept = {}
    for anchor, texts in chosen.items():
        least = min(scores[anchor, positive] for positive in positives[anchor])
        limit = least - config.reranker_margin
        kept[anchor] = [text for text in texts if scores[anchor, text] < limit]
    return kept


def _with_negatives(
    examples: Sequence[Example],
    negatives: Mapping[str, list[str]],
    related: Mapping[str, frozenset[str]],
    count: int,
    seed: int,
    key: _TokenKeys,
) -> list[Example]:
    """Add ``count`` negatives to each row: mined ones, then random positives of other rows."""
    key.add(text for example in examples for text in example.texts)
    positives = list({key(example.texts[1]): example.texts[1] for example in examples}.values())
    n_mined, n_left, added = Counter[int](), 0, []
    for row, example in enumerate(examples):
        own = {key(text) for text in example.texts}
        mined = [text for text in negatives[example.texts[0]] if key(text) not in own][:count]
        known = own.union(map(key, mined), map(key, related[example.texts[0]]))
        drawn = _draw(positives, count - len(mined), known, generator(seed, "sample", row), key)
        n_mined[len(mined)] += 1
        n_left += not mined and not drawn
        added.append(replace(example, texts=(*example.texts, *mined, *drawn)))
    if short := len(examples) - n_mined[count]:
        left = f"; {n_left:,} rows have none, since all passages are their positives"
        few = f"fewer than {count} hard negatives, {n_mined[0]:,} of them none"
        warn(
            f"{short:,} of {len(examples):,} rows got {'no hard negative' if count == 1 else few}. "
            f"They are filled up with random passages of other rows{left if n_left else ''}. A "
            "smaller mining.margin or a larger mining.last finds more hard negatives."
        )
    return added


def _draw(
    texts: Sequence[str],
    count: int,
    known: set[bytes],
    order: np.random.Generator,
    key: _TokenKeys,
) -> list[str]:
    drawn: list[str] = []

    def take(places: NDArray[np.int64]) -> None:
        for text in (texts[place] for place in places.tolist()):
            if len(drawn) < count and key(text) not in known:
                known.add(key(text))
                drawn.append(text)

    take(order.integers(len(texts), size=_DRAWS * count))
    if len(drawn) < count:  # rarely; a permutation of all texts for each row would be slow
        take(order.permutation(len(texts)))
    return drawn


def embed_by_teacher(rows: TextRows, teacher: Embedder, prompt_name: str | None = None) -> TextRows:
    """Set the targets to the teacher's embeddings of the first texts of rows, float32 (n, dim).

    ``prompt_name`` is ignored by a teacher that has no such prompt. The vectors are cached.
    """
    _check_widths(rows)
    anchors, row_of = np.unique(rows.text_ids[:, 0], return_inverse=True)
    vectors = np.empty((len(anchors), teacher.dim), np.float32)
    # The cache must not lose vectors of this run, even if they are more than it usually holds.
    embedder = CachedEmbedder(teacher, max_bytes=MAX_BYTES + vectors.nbytes)
    prompt = prompt_name if prompt_name in teacher.identity.prompts else None
    with progress("Embedding by the teacher", len(anchors), "texts") as advance:
        for start in range(0, len(anchors), _TAUGHT_AT_ONCE):
            some = slice(start, start + _TAUGHT_AT_ONCE)
            texts = [rows.texts[text] for text in anchors[some]]
            vectors[some] = embedder.encode_tokens(embedder.tokenize(texts, prompt_name=prompt))
            embedder.close()  # writes them
            advance(len(texts))
    in_order = np.array_equal(row_of, np.arange(len(vectors)))
    return replace(rows, targets=vectors if in_order else vectors[row_of])


def score_by_teacher(rows: TextRows, teacher: str, *, device: str) -> TextRows:
    """Set the targets to the teacher's logits of the anchor with each other text, float32 (n, k).

    No sigmoid is applied: it would map most large differences of two logits to almost 1.
    """
    _check_widths(rows)
    reranker = Reranker(resolve_model(teacher).path, device=device)
    reranker.opened.engine.use_logits()
    if reranker.num_labels != 1:
        raise ConfigError(
            f"The teacher {teacher} has {reranker.num_labels} labels and so no single score of a "
            "pair; use a cross-encoder with one label."
        )
    texts = [rows.row_texts(row) for row in range(len(rows.text_ids))]
    pairs = [(anchor, candidate) for anchor, *others in texts for candidate in others]
    scores = reranker.predict(pairs, show_progress_bar=True)
    return replace(rows, targets=scores.reshape(len(rows.text_ids), -1).astype(np.float32))


def _check_widths(rows: TextRows) -> None:
    if len(sizes := np.unique(rows.sizes)) > 1:
        raise TrainingError(
            f"Some rows have {sizes.min()} texts and some have {sizes.max()}; a loss that learns "
            "from a teacher needs the same number of texts in every row. Give each row the same "
            "number of negatives."
        )
