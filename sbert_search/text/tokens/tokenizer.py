"""Turn texts and pairs of texts into token ids with the tokenizer of a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, Tokenizer, normalizers, pre_tokenizers

from sbert_search.base import files
from sbert_search.errors import CorpusError, ModelError
from sbert_search.text.tokens.chunking import PIECE_CHARS, WHOLE_WORDS, Chunking, Spans, pieces
from sbert_search.text.tokens.vocabulary import (
    SETTINGS,
    SPECIAL_ROLES,
    bert_template,
    bert_tokenizer,
    read_settings,
    read_vocabulary,
    refuse_slow_patterns,
)

_FILES = (
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)

_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")  # `_apply_settings` skips these
# Names of settings in tokenizer_config.json, with the names of the attributes that hold the same
# settings in a BertNormalizer or a ByteLevel of the `tokenizers` library.
_STATED = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "add_prefix_space": "add_prefix_space",
}

NO_LIMIT = 1 << 30  # tokens; more than any text has
_KNOWN_CHARS = 1 << 19  # of words that are kept with their ids, about 16 MiB
Ids = list[int]


class Frame(NamedTuple):
    """The special tokens around one text, or around and between the two texts of a pair."""

    before: Ids
    between: Ids  # between the texts of a pair; empty for a single text
    after: Ids
    # Segment ids of ``before``, the first text, ``between``, the second text and ``after``.
    types: tuple[int, int, int, int, int]

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.between) + len(self.after)


_NO_FRAME = Frame([], [], [], (0, 0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """Pairs of texts as token ids."""

    ids: list[Ids]  # special tokens included
    types: list[Ids]  # segment ids, one for each token
    lost: NDArray[np.int32]  # number of tokens that truncation removed, (n,)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Number of tokens of each pair after truncation, int32 (n,)."""
        return np.fromiter(map(len, self.ids), dtype=np.int32, count=len(self.ids))

    def take(self, rows: NDArray[np.int64]) -> EncodedPairs:
        """Return the pairs with the indices ``rows``, in the order of ``rows``."""
        indices = rows.tolist()
        return EncodedPairs(
            [self.ids[i] for i in indices], [self.types[i] for i in indices], self.lost[rows]
        )


class TextTokenizer:
    """A tokenizer that truncates to ``max_len``, special tokens included, and counts what is lost.

    ``backend`` neither truncates nor pads. `save` copies the tokenizer files of ``folder``; if
    there is no tokenizer.json to copy, it writes ``backend``. ``framed``: special tokens are put
    around a single text; if not, pairs are not read.
    """

    def __init__(
        self,
        backend: Tokenizer,
        max_len: int,
        *,
        folder: Path | None = None,
        framed: bool = True,
    ) -> None:
        refuse_slow_patterns(backend)
        backend.no_truncation()
        backend.no_padding()
        if backend.post_processor is None and backend.token_to_id("[CLS]") is not None:
            backend.post_processor = bert_template(backend)
        self.backend, self.max_len, self.folder = backend, max_len, folder
        # A table is so fast that most of its time would go into tokenising the same words again.
        self._known_words: dict[str, Ids] | None = (
            {} if not framed and _splits_at_blanks(backend) else None
        )
        self._known_chars = 0
        self._settings = {} if folder is None else read_settings(folder)
        known = _known_text(backend)
        self.single = _frame(backend.encode(known)) if framed else _NO_FRAME
        self.pair = _frame(backend.encode(known, known))
        if framed and self.pair.size >= max_len:
            raise ModelError(
                f"A text may have {max_len} tokens, and a pair needs {self.pair.size} special "
                "tokens; raise max_len, or max_seq_length in a model folder."
            )

    @classmethod
    def from_folder(
        cls, folder: Path, max_len: int, *, do_lower_case: bool = False
    ) -> TextTokenizer:
        """Read a tokenizer from tokenizer.json, or from the vocab.txt of a BERT model.

        ``do_lower_case``: lower-case texts before the tokenizer's own normalisation.
        """
        try:
            if (folder / "tokenizer.json").is_file():
                backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
                _apply_settings(backend, read_settings(folder))
            elif (folder / "vocab.txt").is_file():
                backend = bert_tokenizer(*read_vocabulary(folder))
                _add_tokens(backend, folder / "added_tokens.json")
            else:
                raise ModelError(f"{folder} holds neither tokenizer.json nor vocab.txt.")
        except ModelError:
            raise
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"The tokenizer in {folder} cannot be read: {error}.") from error
        if do_lower_case:
            parts = [normalizers.Lowercase(), backend.normalizer]
            backend.normalizer = normalizers.Sequence([part for part in parts if part is not None])
            return cls(backend, max_len)  # without a folder, `save` writes the changed backend
        return cls(backend, max_len, folder=folder)

    @classmethod
    def of_static(cls, folder: Path) -> TextTokenizer:
        """Read the tokenizer.json of a static model, which puts no special tokens around a text.

        Only a limit that the file states truncates a text, whatever tokenizer_config.json says.
        """
        path = folder / "tokenizer.json"
        try:
            backend = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{path} cannot be read: {error}. Copy the model again.") from error
        limit = int((backend.truncation or {}).get("max_length", NO_LIMIT))
        return cls(backend, limit, folder=folder, framed=False)

    def unframed(self, max_len: int = NO_LIMIT) -> TextTokenizer:
        """Return a tokenizer that puts no special tokens around a single text."""
        return TextTokenizer(self.backend, max_len, folder=self.folder, framed=False)

    def truncating_json(self) -> str:
        """Return the JSON of a tokenizer.json that states the limit, as `of_static` reads it."""
        backend = Tokenizer.from_str(self.backend.to_str())
        if self.max_len < NO_LIMIT:
            backend.enable_truncation(self.max_len)
        return str(backend.to_str())

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary, added tokens included."""
        return int(self.backend.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> tuple[list[Ids], NDArray[np.int32]]:
        """Turn texts into token ids, special tokens included.

        The second result is how many tokens truncation removed from the end of each text, int32
        (n,).
        """
        frame, room = self.single, self.max_len - self.single.size
        counted = self._counted(texts, room)
        lost = np.fromiter((max(0, count - room) for _, count in counted), np.int32, len(counted))
        return [[*frame.before, *ids[:room], *frame.after] for ids, _ in counted], lost

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> EncodedPairs:
        """Turn pairs into token ids; if a pair is too long, its longer text is truncated first."""
        frame, room = self.pair, self.max_len - self.pair.size
        # Often the first text of many pairs is the same query, so equal first texts are tokenised
        # once.
        queries = list(dict.fromkeys(first for first, _ in pairs))
        ids_of = dict(zip(queries, self._ids(queries), strict=True))
        seconds = self._ids([second for _, second in pairs])
        ids, types, lost = [], [], []
        for (text, _), second in zip(pairs, seconds, strict=True):
            first = ids_of[text]
            keep = _longest_first(len(first), len(second), room)
            parts = (frame.before, first[: keep[0]], frame.between, second[: keep[1]], frame.after)
            ids.append([token for part in parts for token in part])
            types.append([t for t, part in zip(frame.types, parts, strict=True) for _ in part])
            lost.append(len(first) + len(second) - sum(keep))
        return EncodedPairs(ids, types, np.array(lost, dtype=np.int32))

    def encode_offsets(self, texts: Sequence[str]) -> list[tuple[Ids, list[tuple[int, int]]]]:
        """Return the ids and places of all tokens of each text, without special tokens.

        A place is the index of the first character and the index after the last one.
        """
        try:
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise _bad_text(texts, error) from error
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def split(
        self, text: str, *, prompt: str = "", chunking: Chunking = WHOLE_WORDS
    ) -> list[tuple[int, int]]:
        """Split a text into passages whose tokens, with those of the prompt, fit into ``max_len``.

        Returns start and end of each passage in characters; the passages cover the text without
        gaps.
        """
        try:
            return chunking.split(text, lambda piece: self._split(piece, prompt, chunking))
        except (TypeError, UnicodeEncodeError) as error:
            raise _bad_text([text], error) from error

    def require_room(self, prompt: str, limit: int | None = None) -> int:
        """Return how many tokens, at least 1, a prompt and the special tokens leave for a text.

        ``limit``: maximum number of tokens of a text with its prompt; None: ``max_len``.
        """
        limit = self.max_len if limit is None else limit
        room = limit - self.single.size - len(self._ids([prompt])[0])
        if room <= 0:
            raise _no_room(prompt, limit)
        return room

    def _split(self, text: str, prompt: str, chunking: Chunking) -> Spans:
        whole = self.backend.encode(text, add_special_tokens=False)
        limit = min(chunking.tokens or self.max_len, self.max_len)
        room, capacity = limit - self.single.size, self.require_room(prompt, limit)
        while capacity > 0:
            spans = chunking.spans(text, whole.offsets, whole.word_ids, capacity)
            sizes = map(len, self._ids([prompt + text[start:end] for start, end in spans]))
            if (excess := max(sizes, default=0) - room) <= 0:
                return spans
            capacity -= excess  # a word split in two can have more tokens than the whole word
        raise _no_room(prompt, limit)

    def sha256(self) -> str:
        """Return the SHA-256 of the tokenizer's JSON, in hexadecimal."""
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def save(self, folder: Path, *, segments: bool = True) -> None:
        """Write the files of the tokenizer into a folder, with ``max_len`` as ``model_max_length``.

        ``segments``: the model reads segment ids.
        """
        settings: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
        known = {role: [*filter(self._knows, names)] for role, names in SPECIAL_ROLES.items()}
        settings |= {role: names[0] for role, names in known.items() if names}
        contents = {"tokenizer.json": self.backend.to_str().encode()}
        if self.folder is not None:
            settings = self._settings or settings
            given = (self.folder / name for name in _FILES)
            contents |= {path.name: path.read_bytes() for path in given if path.is_file()}
        for name, content in contents.items():
            files.replace_file(folder / name, content)
        # Stored, since the default of transformers differs by class and version.
        types = ["token_type_ids"] if segments else []
        inputs = ["input_ids", *types, "attention_mask"]
        settings = {**settings, "model_max_length": self.max_len, "model_input_names": inputs}
        files.replace_file(folder / SETTINGS, json.dumps(settings, indent=2).encode() + b"\n")

    def _knows(self, token: str) -> bool:
        return self.backend.token_to_id(token) is not None

    def _counted(self, texts: Sequence[str], room: int) -> list[tuple[Ids, int]]:
        """Return for each text at least its first ``room`` ids, and the number of all its ids."""
        is_long = [isinstance(text, str) and len(text) > PIECE_CHARS for text in texts]
        if not any(is_long) or not all(isinstance(text, str) for text in texts):
            return [(ids, len(ids)) for ids in self._ids(texts)]
        return [self._counted_by_pieces(text, room) for text in texts]

    def _counted_by_pieces(self, text: str, room: int) -> tuple[Ids, int]:
        """Return the first ``room`` ids of a long text and count all its ids, piece by piece.

        The count may be off by one for each piece. The ids are exact if each piece ends at a blank.
        """
        kept: Ids = []
        count = 0
        for piece in pieces(text):
            ids = self._ids([piece])[0]
            kept += ids[: max(0, room - len(kept))]
            count += len(ids)
        return kept, count

    def _ids(self, texts: Sequence[str]) -> list[Ids]:
        try:
            if self._known_words is None or not all(isinstance(text, str) for text in texts):
                return self._new_ids(texts)
            return self._ids_by_words(texts, self._known_words)
        except (TypeError, UnicodeEncodeError) as error:
            raise _bad_text(texts, error) from error

    def _ids_by_words(self, texts: Sequence[str], known: dict[str, Ids]) -> list[Ids]:
        """Tokenise the words of texts that are not known; the first ones are remembered."""
        split = [text.split(" ") for text in texts]
        distinct = set().union(*split)
        ids_of = {word: known[word] for word in distinct if word in known}
        if new := list(distinct.difference(ids_of)):
            # As one text, since each text has a fixed cost.
            encoding = self.backend.encode(new, is_pretokenized=True, add_special_tokens=False)
            found: list[Ids] = [[] for _ in new]
            for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word is not None:  # special tokens alone have no word
                    found[word].append(token)
            ids_of.update(zip(new, found, strict=True))
            if self._known_chars < _KNOWN_CHARS:
                self._known_chars += sum(map(len, new))
                known.update(zip(new, found, strict=True))
        return [list(chain.from_iterable(map(ids_of.__getitem__, words))) for words in split]

    def _new_ids(self, texts: Sequence[str]) -> list[Ids]:
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def _add_tokens(backend: Tokenizer, path: Path) -> None:
    """Add the tokens of added_tokens.json, where transformers puts those outside vocab.txt."""
    ids = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    for token, token_id in sorted(ids.items(), key=lambda item: int(item[1])):
        if backend.token_to_id(token) is None:
            backend.add_tokens([AddedToken(token, normalized=True)])
        if backend.token_to_id(token) != token_id:
            raise ModelError(
                f"{path}: the token {token!r} has the id {token_id}, but after the tokens of "
                f"vocab.txt it is {backend.token_to_id(token)}. Take both from one model."
            )


def _apply_settings(backend: Tokenizer, settings: Mapping[str, object]) -> None:
    """Change a tokenizer where tokenizer_config.json contradicts tokenizer.json.

    The tokenizer classes of BERT and RoBERTa in transformers, versions 4 and 5, do so too. The
    classes in `_GENERIC` follow tokenizer.json.
    """
    if settings.get("tokenizer_class") in _GENERIC:
        return
    parts = {"normalizer": backend.normalizer, "pre_tokenizer": backend.pre_tokenizer}
    kinds = (normalizers.BertNormalizer, pre_tokenizers.ByteLevel)
    for place, part in parts.items():
        stated = _STATED.items() if isinstance(part, kinds) else ()
        for key, name in stated:
            value = settings.get(key)
            known = isinstance(value, bool) or (key == "strip_accents" and key in settings)
            if known and getattr(part, name, value) != value:
                setattr(part, name, value)
                setattr(backend, place, part)


def _splits_at_blanks(backend: Tokenizer) -> bool:
    """Whether a text can be cut at its blanks, and its parts tokenised apart, with equal ids."""
    by_character = isinstance(backend.normalizer, normalizers.BertNormalizer)
    by_word = isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    added = backend.get_added_tokens_decoder().values()
    return by_character and by_word and not any(" " in token.content for token in added)


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of each text of a pair to keep, at most ``room`` in total."""
    # The longer text is truncated until both texts are equally long, then both are truncated.
    if first + second <= room:
        return first, second
    short, half = min(first, second), room // 2
    if short <= half:
        return (short, room - short) if first <= second else (room - short, short)
    return (half, room - half) if first <= second else (room - half, half)


def _known_text(backend: Tokenizer) -> str:
    """Return a text that the tokenizer turns into at least one token: "a" if possible."""
    if backend.encode("a", add_special_tokens=False).ids:
        return "a"
    for number in backend.get_vocab().values():
        text = backend.decode([number], skip_special_tokens=False)
        if backend.encode(text, add_special_tokens=False).ids:
            return text
    raise ModelError("The tokenizer makes no token of any text; its vocabulary is damaged.")


def _frame(probe: Encoding) -> Frame:
    """Find the special tokens that the tokenizer added to an encoded text or pair."""
    owners = probe.sequence_ids
    texts = [index for index, owner in enumerate(owners) if owner is not None]
    first, last = texts[0], texts[-1]
    middle = [index for index in range(first, last) if owners[index] is None]
    second = middle[-1] + 1 if middle else last
    between = probe.type_ids[middle[0]] if middle else 0
    types = (probe.type_ids[0], probe.type_ids[first], between, probe.type_ids[second])
    return Frame(
        probe.ids[:first],
        [probe.ids[index] for index in middle],
        probe.ids[last + 1 :],
        (*types, probe.type_ids[-1]),
    )


def _no_room(prompt: str, limit: int) -> ModelError:
    before = f"the prompt {prompt!r} and " if prompt else ""
    return ModelError(
        f"A passage has {limit} tokens, and {before}special tokens leave no room in it."
    )


def _bad_text(texts: Sequence[str], error: Exception) -> CorpusError:
    for text in texts:
        if not isinstance(text, str):
            return CorpusError(f"{text!r} is not a string; every text must be a string.")
        if match := re.search("[\ud800-\udfff]", text):
            near = text[max(0, match.start() - 20) : match.end()]
            return CorpusError(
                f"The text has a lone surrogate at character {match.start()}, at the end of "
                f"{near!r}; read its source as UTF-8, or remove the surrogate."
            )
    return CorpusError(f"The texts cannot be tokenised: {error}.")
