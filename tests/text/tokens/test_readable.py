from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from sbert_search.text.tokens.specials import readable_tokens
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.models.tiny import tiny_tokenizer


def test_pieces_of_words_keep_their_mark(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    (ids,), _ = tokenizer.encode(["the catx"])
    assert readable_tokens(tokenizer, ids) == ["[CLS]", "the", "cat", "##x", "[SEP]"]


def test_tokens_of_bytes_are_shown_as_characters() -> None:
    pieces = ["<s>", "</s>", "a", "\u0120sun", "\u00c3\u00a9", "\u00c3"]
    backend = Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    shown = readable_tokens(TextTokenizer(backend, 24), [0, 3, 4, 5, 1])
    # The last but one is the first byte of a character, which has no text of its own.
    assert shown == ["<s>", "\u2423sun", "\u00e9", "\u00c3", "</s>"]


def test_pieces_of_sentencepiece_and_unknown_ids() -> None:
    backend = Tokenizer(models.Unigram([("<s>", 0.0), ("\u2581cat", -1.0), ("a", -2.0)], 0))
    backend.post_processor = processors.RobertaProcessing(("<s>", 0), ("<s>", 0))
    assert readable_tokens(TextTokenizer(backend, 24), [1, 9]) == ["\u2423cat", "#9"]
