"""Shares of masks, pairs and special tokens over a million tokens of model input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sbert_search.errors import ModelError
from sbert_search.text.tokens.masking import MaskSettings, continues_word
from sbert_search.text.tokens.mlm_dataset import MaskedCorpus
from sbert_search.text.tokens.segments import Kind, SegmentSettings
from sbert_search.text.tokens.shard_writing import ShardWriter
from sbert_search.text.tokens.shards import TokenShards
from sbert_search.text.tokens.specials import SpecialTokens, mask_vocabulary
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.train.words import WORDS, write_vocabulary

DOCUMENTS, FIRST = 3_000, 5  # ids of words begin behind the special tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = write_vocabulary(tmp_path_factory.mktemp("masked") / "v")
    return TextTokenizer.from_folder(folder, 128)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> TokenShards:
    """Documents of one word each (the word of the document's number, modulo the vocabulary)."""
    folder = tmp_path_factory.mktemp("shards") / "s"
    draw = np.random.default_rng(0)
    with ShardWriter(folder, vocab_size=FIRST + len(WORDS), identity={}) as writer:
        documents = [
            [[FIRST + n % len(WORDS)] * int(size) for size in draw.integers(5, 30, 20)]
            for n in range(DOCUMENTS)
        ]
        writer.add(documents, DOCUMENTS)
        writer.finish(DOCUMENTS)
    return TokenShards(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["nsp", "sop"])
def test_shares_over_a_million_tokens(
    kind: Kind, shards: TokenShards, tokenizer: TextTokenizer
) -> None:
    assert shards.n_tokens > 1_000_000
    corpus = MaskedCorpus(shards, tokenizer, SegmentSettings(kind=kind), MaskSettings(), seed=1)
    found = corpus.read(np.arange(len(corpus)))
    original = found.input_ids.copy()
    original[found.positions] = found.labels
    ordinary = original >= FIRST
    assert abs(len(found.positions) / ordinary.sum() - 0.15) < 0.001
    assert (found.labels >= FIRST).all()
    seen = found.input_ids[found.positions]
    assert abs((seen == SpecialTokens.of(tokenizer).mask_id).mean() - 0.8) < 0.005
    assert abs((seen == found.labels).mean() - 0.1 - 0.1 / len(WORDS)) < 0.005
    assert abs(found.pair_labels.mean() - 0.5) < 0.02
    starts = np.cumsum(found.lengths) - found.lengths
    first_words = original[starts + 1]
    second_words = original[starts + found.lengths - 2]
    differ = first_words != second_words
    if kind == "nsp":  # another document has another word, but for those with the same number
        assert not differ[found.pair_labels == 0].any()
        assert abs(differ[found.pair_labels == 1].mean() - (1 - 1 / len(WORDS))) < 0.005
    else:
        assert not differ.any()


@pytest.mark.parametrize("kind", ["nsp", "sop", "full-sentences", "document-sentences"])
def test_a_part_of_the_documents_leaves_the_others_alone(
    kind: Kind, shards: TokenShards, tokenizer: TextTokenizer
) -> None:
    """Documents 100 to 149 hold the words of these numbers."""
    settings = SegmentSettings(kind=kind, max_len=64)
    corpus = MaskedCorpus(shards, tokenizer, settings, MaskSettings(), seed=1, documents=(100, 150))
    found = corpus.read(np.arange(len(corpus)))
    original = found.input_ids.copy()
    original[found.positions] = found.labels
    words = np.unique(original[original >= FIRST]) - FIRST
    assert words.tolist() == list(range(100, 150))
    assert (original >= FIRST).sum() <= np.diff(shards.document_token_starts)[100:150].sum() * 2


def test_special_tokens_and_pieces_of_a_word_are_known(tokenizer: TextTokenizer) -> None:
    vocabulary = mask_vocabulary(tokenizer)
    assert vocabulary.special.tolist() == [True] * FIRST + [False] * len(WORDS)
    assert continues_word(["a", "##b", "##", "Ġ"]).tolist() == [False, True, True, False]
    assert continues_word(["a", "Ġb", "Ġc", "##"]).tolist() == [True, False, False, True]


def test_a_tokenizer_without_a_mask_or_a_frame_is_refused(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.from_folder(write_vocabulary(tmp_path / "v"), 16)
    tokenizer.single.before.append(0)
    with pytest.raises(ModelError, match="puts 2 special tokens before a text"):
        SpecialTokens.of(tokenizer)
