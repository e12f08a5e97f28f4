"""Read and write the folder of a tokenizer: its vocabulary and its settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import WordPiece

from sbert_search.base import files
from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, ModelError
from sbert_search.text.tokens.words import MAX_WORD_CHARS, WordRules

SETTINGS = "tokenizer_config.json"


def read_settings(folder: Path) -> dict[str, object]:
    """Read the settings in the folder of a tokenizer; {} if there is no file with settings."""
    path = folder / SETTINGS
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read as JSON: {error}. Repair the file, or copy it again."
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path} holds no JSON object. Repair the file, or copy it again.")
    return settings


_PART = re.compile(  # a group border or a repetition; or an escape or character class, to skip
    r"""
    (?P<skip> \\[pPxu]\{[^}]*\} | \\. | \[(?:\\.|\[:\^?\w+:\]|[^\]\\])+\] )
    | (?P<open> \((?P<atomic>\?>)? )
    | (?P<close> \) )
    | (?P<repeat> (?: [*+] | \{\d*,\d*\} ) (?P<mode>[+?]?) )
    """,
    re.VERBOSE | re.DOTALL,
)


def refuse_slow_patterns(tokenizer: Tokenizer) -> None:
    """Raise an error if a tokenizer uses an expression for which `repeats_repeats` is true.

    The library that matches the expressions uses backtracking and has no time limit.
    """
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for pattern in _patterns(json.loads(part.__getstate__())):
                if repeats_repeats(pattern):
                    raise ModelError(
                        f"The tokenizer uses the expression {pattern[:80]}, which repeats a group "
                        "that contains a repetition; matching a text may take for ever. "
                        "Write it in tokenizer.json without the inner repetition."
                    )


def repeats_repeats(pattern: str) -> bool:
    """Whether an unbounded repetition is repeated without bound, as in ``(a+)+``.

    Backtracking then tries exponentially many ways. Possessive repetitions and atomic groups do not
    backtrack.
    """
    # The whole expression counts as the outermost group. For each open group, outermost first:
    # whether the group contains an unbounded repetition that can backtrack, and whether the group
    # is atomic.
    repeats, atomic = [False], [False]
    # For the previous match of `_PART`: whether the match closed a group that contains such a
    # repetition and is not atomic, and where the match ends.
    closed_repeats, end = False, 0
    for part in _PART.finditer(pattern):
        follows = closed_repeats and part.start() == end
        closed_repeats, end = False, part.end()
        if part["open"]:
            repeats.append(False)
            atomic.append(part["atomic"] is not None)
        elif part["close"] and len(repeats) > 1:
            group_repeats, is_atomic = repeats.pop(), atomic.pop()
            closed_repeats = group_repeats and not is_atomic
            repeats[-1] |= closed_repeats
        elif part["repeat"] and not re.fullmatch(r"\{\d*,\d+\}.?", part["repeat"]):
            if follows and part["mode"] != "+":
                return True
            repeats[-1] |= part["mode"] != "+"
    return False


def _patterns(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(pattern := value.get("Regex"), str):
            yield pattern
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _patterns(part)


SPECIAL_ROLES = {  # special tokens by role: the name in BERT, then the name in RoBERTa
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
SPECIAL_TOKENS = tuple(in_bert for in_bert, _ in SPECIAL_ROLES.values())
UNKNOWN = "[UNK]"
CONTINUATION = "##"  # prefix of a piece that continues a word

_FILES = ("tokenizer.json", "vocab.txt", SETTINGS)


def bert_tokenizer(vocabulary: Sequence[str], rules: WordRules) -> Tokenizer:
    """Make BERT's tokenizer: normalise, split, match the longest piece first, add [CLS] [SEP]."""
    ids = {piece: piece_id for piece_id, piece in enumerate(vocabulary)}
    if len(ids) < len(vocabulary):
        twice = next(piece for piece_id, piece in enumerate(vocabulary) if ids[piece] != piece_id)
        raise ModelError(f"The vocabulary has {twice!r} twice; its ids would be ambiguous.")
    if missing := [token for token in SPECIAL_TOKENS if token not in ids]:
        raise ModelError(
            f"The vocabulary has no {', '.join(missing)}; BERT needs each of "
            f"{' '.join(SPECIAL_TOKENS)}. Add the missing ones as lines of their own."
        )
    model = WordPiece(
        ids,
        unk_token=UNKNOWN,
        max_input_chars_per_word=MAX_WORD_CHARS,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = rules.normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=CONTINUATION)
    tokenizer.post_processor = bert_template(tokenizer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def bert_template(tokenizer: Tokenizer) -> processors.TemplateProcessing:
    """Make a template with [CLS] before the first text and [SEP] after each text."""
    ids = {token: tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]")}
    if missing := [token for token, token_id in ids.items() if token_id is None]:
        raise ModelError(
            f"The tokenizer has neither {missing[0]} nor a post-processor, which would say what "
            "special tokens surround a text; add one of the two."
        )
    return processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=list(ids.items()),
    )


@dataclass(frozen=True)
class _Stated:
    """The keys of tokenizer_config.json that hold the fields of `WordRules`."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True


def save_vocabulary(
    out: Path, vocabulary: Sequence[str], rules: WordRules, *, max_len: int = 512
) -> None:
    """Write tokenizer.json, vocab.txt and tokenizer_config.json atomically into a new folder."""
    check_new(out)
    config = {
        "tokenizer_class": "BertTokenizer",
        "model_max_length": max_len,
        **asdict(_Stated(rules.lowercase, rules.strip_accents, rules.split_cjk)),
        **dict(zip(SPECIAL_ROLES, SPECIAL_TOKENS, strict=True)),
    }
    contents = (
        bert_tokenizer(vocabulary, rules).to_str(pretty=True),
        "".join(f"{piece}\n" for piece in vocabulary),
        json.dumps(config, indent=2) + "\n",
    )
    temporary = out.with_name(out.name + ".tmp")
    files.remove_tree(temporary)
    files.disk.make_folder(temporary)
    for name, content in zip(_FILES, contents, strict=True):
        files.write_new(temporary / name, content.encode("utf-8"))
    files.disk.fsync_folder(temporary)
    files.disk.replace(temporary, out)
    files.disk.fsync_folder(out.parent)


def check_new(out: Path) -> None:
    """Refuse a folder that exists or that `save_vocabulary` cannot create."""
    if out.exists():
        raise ConfigError(f"{out} exists already; name a new folder.")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent} is not a folder; make it first.")
    temporary = out.with_name(out.name + ".tmp")
    if os.path.lexists(temporary) and not _is_leftover(temporary):
        raise ConfigError(f"{temporary} is in the way; move it, or name another folder.")


def _is_leftover(temporary: Path) -> bool:
    if temporary.is_symlink() or not temporary.is_dir():
        return False
    return all(entry.name in _FILES for entry in temporary.iterdir())


def read_vocabulary(path: Path) -> tuple[list[str], WordRules]:
    """Read the pieces in the order of ids, and the word rules, from a folder or a vocab.txt.

    A rule that no tokenizer_config.json beside vocab.txt states is that of an uncased BERT model.
    """
    file = path / "vocab.txt" if path.is_dir() else path
    try:
        # splitlines() would also split at other line separators, such as U+2028, which may be
        # pieces.
        lines = file.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ModelError(f"No vocabulary can be read from {path}: {error}.") from error
    vocabulary = [line.removesuffix("\r") for line in lines]
    if vocabulary[-1] == "":
        vocabulary.pop()
    rules = _read_rules(file.parent)
    bert_tokenizer(vocabulary, rules)
    return vocabulary, rules


def _read_rules(folder: Path) -> WordRules:
    try:
        stated = from_mapping(_Stated, read_settings(folder), others=True)
    except ConfigError as error:
        raise ModelError(f"{folder / SETTINGS}: {error}") from error
    return WordRules(
        lowercase=stated.do_lower_case,
        strip_accents=stated.strip_accents,
        split_cjk=stated.tokenize_chinese_chars,
    )
