import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertTokenizer

from sbert_search.errors import CorpusError, ModelError
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.tokens import tokenizer
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.models.tiny import TEXTS, tiny_tokenizer

MINILM = resolve_model().path
SHARED = settings(max_examples=40, deadline=None)
MANY = [
    *TEXTS,
    "Crème BRÛLÉE, naïve 東京 ﬁ\u00a0x\u200b\t\n",
    "word" * 40,
    "[SEP] inside",
    "🙂 x" * 99,
]


@pytest.fixture(scope="module")
def minilm() -> TextTokenizer:
    return TextTokenizer.from_folder(MINILM, 64)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """The same tokenizer, read from vocab.txt only."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copy(MINILM / "vocab.txt", folder)
    return TextTokenizer.from_folder(folder, 64)


@pytest.fixture(scope="module")
def library() -> Any:
    return AutoTokenizer.from_pretrained(MINILM)


def test_ids_equal_those_of_transformers(minilm: TextTokenizer, library: Any) -> None:
    theirs = library(MANY, truncation=True, max_length=64)
    assert minilm.encode(MANY)[0] == theirs["input_ids"]


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
@SHARED
def test_a_vocabulary_alone_gives_the_tokenizer_of_bert(
    bare: TextTokenizer, minilm: TextTokenizer, texts: list[str]
) -> None:
    assert bare.encode(texts)[0] == minilm.encode(texts)[0]


@given(
    st.lists(
        st.text(st.characters() | st.sampled_from("  abİ\u0301.\n[MASK]東"), max_size=30)
        | st.sampled_from(MANY),
        max_size=4,
    )
)
@SHARED
def test_words_that_are_remembered_have_the_ids_of_whole_texts(
    minilm: TextTokenizer, texts: list[str]
) -> None:
    unframed = minilm.unframed()
    expected = [minilm.backend.encode(text, add_special_tokens=False).ids for text in texts]
    with patch.object(tokenizer, "_KNOWN_CHARS", 9):  # forgets them now and then
        assert [unframed.encode(texts)[0] for _ in range(3)] == [expected] * 3


def test_an_added_token_with_a_blank_is_seen_in_whole_texts(tmp_path: Path) -> None:
    backend = tiny_tokenizer(tmp_path).backend
    backend.add_tokens(["the cat"])
    ids, _ = TextTokenizer(backend, 64).unframed().encode(["the cat", "the cat"])
    assert ids == [[backend.token_to_id("the cat")]] * 2


@pytest.mark.parametrize("lower", [True, False])
def test_the_switches_of_bert_are_obeyed(tmp_path: Path, lower: bool) -> None:
    tiny_tokenizer(tmp_path)
    settings = {"do_lower_case": lower, "strip_accents": False, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    theirs = BertTokenizer.from_pretrained(tmp_path)
    ours = TextTokenizer.from_folder(tmp_path, 100)
    assert ours.encode(TEXTS)[0] == theirs(TEXTS)["input_ids"]


def test_tokens_that_were_added_to_a_vocabulary_are_known(tmp_path: Path) -> None:
    size = tiny_tokenizer(tmp_path).vocab_size
    added = tmp_path / "added_tokens.json"
    added.write_text(json.dumps({"<dog>": size + 1, "<new>": size}), "utf-8")
    texts = ["a <new> cat<dog>", "A <NEW>cat"]
    ours = TextTokenizer.from_folder(tmp_path, 30)
    assert ours.encode(texts)[0] == BertTokenizer.from_pretrained(tmp_path)(texts)["input_ids"]
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    assert (
        TextTokenizer.from_folder(tmp_path / "saved", 30).encode(texts)[0] == ours.encode(texts)[0]
    )
    added.write_text(json.dumps({"<new>": size + 5}), "utf-8")
    with pytest.raises(
        ModelError, match=f"'<new>' has the id {size + 5}, but after .* it is {size}"
    ):
        TextTokenizer.from_folder(tmp_path, 30)


def test_lower_case_can_be_forced(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}', "utf-8")
    plain = TextTokenizer.from_folder(tmp_path, 30)
    forced = TextTokenizer.from_folder(tmp_path, 30, do_lower_case=True)
    assert forced.encode(["The CAT"])[0] == plain.encode(["the cat"])[0]
    assert plain.encode(["The CAT"])[0] != plain.encode(["the cat"])[0]
    (tmp_path / "saved").mkdir()
    forced.save(tmp_path / "saved")
    saved = TextTokenizer.from_folder(tmp_path / "saved", 30)
    assert saved.encode(["The CAT"])[0] == plain.encode(["the cat"])[0]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(["The CAT"])["input_ids"] == saved.encode(["The CAT"])[0]


def test_a_limit_without_room_for_a_pair_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="raise max_len, or max_seq_length in a model folder"):
        tiny_tokenizer(tmp_path, 3)


@pytest.mark.filterwarnings("ignore:Token indices sequence length")
def test_what_is_cut_off_is_counted(minilm: TextTokenizer, library: Any) -> None:
    full = [len(ids) - 2 for ids in library(MANY, truncation=False)["input_ids"]]
    ids, lost = minilm.encode(MANY)
    assert lost.tolist() == [max(0, n - 62) for n in full]
    assert max(map(len, ids)) == 64


@given(st.integers(0, 12), st.integers(0, 12), st.integers(4, 20))
@SHARED
def test_pairs_are_cut_as_transformers_cuts_them(
    minilm: TextTokenizer, library: Any, first: int, second: int, max_len: int
) -> None:
    pair = ("cat " * first, "dog " * second)
    theirs = library([pair[0]], [pair[1]], truncation="longest_first", max_length=max_len)
    minilm.max_len, before = max_len, minilm.max_len
    ours = minilm.encode_pairs([pair])
    minilm.max_len = before
    assert ours.ids == theirs["input_ids"]
    assert ours.types == theirs["token_type_ids"]
    assert ours.lost.tolist() == [first + second + 3 - len(theirs["input_ids"][0])]


@pytest.mark.thorough
@given(st.text("ab cd.éX\n東", max_size=120), st.integers(6, 12), st.sampled_from(["", "cat "]))
@settings(max_examples=60, deadline=None)
def test_passages_cover_the_text_and_lose_nothing(text: str, max_len: int, prompt: str) -> None:
    tokenizer = TextTokenizer.from_folder(MINILM, max_len)
    spans = tokenizer.split(text, prompt=prompt)
    assert "".join(text[start:end] for start, end in spans) == text
    assert not tokenizer.encode([prompt + text[start:end] for start, end in spans])[1].any()


def test_a_prompt_that_fills_everything_is_an_error() -> None:
    tokenizer = TextTokenizer.from_folder(MINILM, 6)
    with pytest.raises(ModelError, match="leave no room in it"):
        tokenizer.split("a cat", prompt="one two three four ")
    with pytest.raises(ModelError, match="A passage has 6 tokens, and the prompt 'one two three"):
        tokenizer.require_room("one two three four ")
    assert tokenizer.require_room("one two three ") == 1
    assert tokenizer.require_room("") == 4


def test_a_very_long_text_is_cut_and_split(minilm: TextTokenizer) -> None:
    text = "cat sat " * 50_000
    ids, lost = minilm.encode([text])
    assert (len(ids[0]), int(lost[0])) == (64, 100_000 - 62)
    assert len(minilm.split(text)) == 1613


def test_it_survives_saving(tmp_path: Path, minilm: TextTokenizer) -> None:
    minilm.save(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(MANY, truncation=True)["input_ids"] == minilm.encode(MANY)[0]
    assert TextTokenizer.from_folder(tmp_path, 64).sha256() == minilm.sha256()


def test_one_made_in_memory_survives_saving(tmp_path: Path) -> None:
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4}
    ours = TextTokenizer(Tokenizer(models.WordPiece(vocab, unk_token="[UNK]")), 8)
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode(["a"])[0] == [theirs("a")["input_ids"]] == [[2, 4, 3]]
    assert (theirs.pad_token, theirs.model_max_length) == ("[PAD]", 8)


def test_one_read_from_a_vocabulary_alone_survives_saving(
    tmp_path: Path, bare: TextTokenizer
) -> None:
    bare.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(MANY, truncation=True)["input_ids"] == bare.encode(MANY)[0]
    assert theirs.pad_token == "[PAD]"


@pytest.mark.parametrize("lower", [False, True])
def test_special_tokens_with_the_names_of_roberta_survive_saving(
    tmp_path: Path, lower: bool
) -> None:
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate([*names, "a"])}, []))
    made.add_special_tokens(names)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    (tmp_path / "given").mkdir()
    made.save(str(tmp_path / "given" / "tokenizer.json"))
    ours = TextTokenizer.from_folder(tmp_path / "given", 8, do_lower_case=lower)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(["aa", "a"], padding=True)["input_ids"] == [[0, 5, 5, 2], [0, 5, 2, 1]]
    assert (theirs.mask_token, theirs.unk_token) == ("<mask>", "<unk>")


@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("bad", ["cat \ud800", None, 3])
def test_what_is_no_text_is_named(minilm: TextTokenizer, bad: str, framed: bool) -> None:
    reader = minilm if framed else minilm.unframed()
    with pytest.raises(
        CorpusError, match=r"surrogate at character 4|None is not a string|3 is not"
    ):
        reader.encode(["fine", bad])
    with pytest.raises(CorpusError, match=r"surrogate|None is not a string|3 is not"):
        reader.encode(["long " * 100_000, bad])


@pytest.mark.parametrize("bad", ["a \ud800 b", None, 3])
def test_what_is_no_text_is_not_split(minilm: TextTokenizer, bad: str) -> None:
    with pytest.raises(CorpusError, match=r"at character 2,|None is not a string|3 is not"):
        minilm.split(bad)


def test_the_position_of_a_surrogate_is_that_in_the_whole_text(minilm: TextTokenizer) -> None:
    with pytest.raises(CorpusError, match="at character 500000,"):
        minilm.split("long " * 100_000 + "\ud800")
    with pytest.raises(CorpusError, match="at character 6,"):
        minilm.split("a cat", prompt="query \ud800")


@pytest.mark.parametrize("damage", ["{", "[]", "\xff"])
def test_damaged_settings_are_named_at_opening(tmp_path: Path, damage: str) -> None:
    tiny_tokenizer(tmp_path / "model").save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(tiny_tokenizer(tmp_path / "model").backend.to_str())
    (tmp_path / "tokenizer_config.json").write_text(damage, "latin-1")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json .*copy it again"):
        TextTokenizer.from_folder(tmp_path, 16)


def test_segments_are_not_sent_to_a_model_without(tmp_path: Path, minilm: TextTokenizer) -> None:
    minilm.save(tmp_path, segments=False)
    assert set(AutoTokenizer.from_pretrained(tmp_path)("a", "b")) == {"input_ids", "attention_mask"}


def test_a_limit_below_the_special_tokens_is_refused() -> None:
    with pytest.raises(ModelError, match="a pair needs 3 special"):
        TextTokenizer.from_folder(MINILM, 3)


def test_a_vocabulary_without_latin_letters_can_be_read() -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    backend.train_from_iterator(["η γάτα κάθεται"], trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer = TextTokenizer(backend, 20)
    assert tokenizer.encode(["η γάτα"])[0] == [backend.encode("η γάτα").ids]
    pair = backend.encode("η", "γάτα")
    assert tokenizer.encode_pairs([("η", "γάτα")]).ids == [pair.ids]
    empty = Tokenizer(models.BPE())
    empty.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    with pytest.raises(ModelError, match="makes no token of any text"):
        TextTokenizer(empty, 20)
