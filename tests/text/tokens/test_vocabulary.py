from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from sbert_search.base.files import Disk, use_disk
from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.vocabulary import (
    SPECIAL_TOKENS,
    bert_tokenizer,
    read_vocabulary,
    save_vocabulary,
)
from sbert_search.text.tokens.wordpiece import Algorithm, VocabularySettings, train_tokenizer
from sbert_search.text.tokens.words import WordRules

TEXTS = [
    "The unbelievable river runs past the river bank.",
    "Runners were running; the runner ran, unbelievably, to the bank.",
    "Das Café über dem Fluss: naïve, 東京, and the end.",
] * 3
UNSEEN = "Un-runnable [MASK] banks? Zürich 東京 the\u00a0CAFÉ qqq"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"_id": str(n), "text": t}) + "\n" for n, t in enumerate(TEXTS))
    )
    return path


def trained(source: Path, out: Path, **settings: object) -> Path:
    train_tokenizer(CorpusReader([source]), out, VocabularySettings(**settings))  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_folder_loads_in_transformers_with_equal_ids(
    source: Path, tmp_path: Path, algorithm: Algorithm, lowercase: bool
) -> None:
    rules = WordRules(lowercase=lowercase)
    out = trained(source, tmp_path / "out", vocab_size=150, algorithm=algorithm, rules=rules)
    ours = Tokenizer.from_file(str(out / "tokenizer.json"))
    legacy = import_module("transformers.models.bert.tokenization_bert_legacy").BertTokenizerLegacy(
        str(out / "vocab.txt"), do_lower_case=lowercase
    )
    fast = import_module("transformers").BertTokenizerFast.from_pretrained(out)
    for theirs in (fast, AutoTokenizer.from_pretrained(out), legacy):
        assert len(theirs) == ours.get_vocab_size()
        assert theirs.mask_token_id == SPECIAL_TOKENS.index("[MASK]")
        for text in [*TEXTS, UNSEEN]:
            assert theirs(text, TEXTS[0])["input_ids"] == ours.encode(text, TEXTS[0]).ids
    pair = fast(UNSEEN, TEXTS[0], return_offsets_mapping=True)
    assert pair["token_type_ids"] == ours.encode(UNSEEN, TEXTS[0]).type_ids
    assert pair["offset_mapping"] == ours.encode(UNSEEN, TEXTS[0]).offsets


def test_offsets_point_into_the_text_as_it_was(source: Path, tmp_path: Path) -> None:
    out = trained(source, tmp_path / "out", vocab_size=150)
    text = "  Naïve\tCAFÉ, 東京!"
    encoded = Tokenizer.from_file(str(out / "tokenizer.json")).encode(
        text, add_special_tokens=False
    )
    assert [text[a:b] for a, b in encoded.offsets if b - a > 1][-1] == "CAFÉ"
    assert "".join(text[a:b] for a, b in encoded.offsets) == "NaïveCAFÉ,東京!"


def test_training_twice_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    first = trained(source, tmp_path / "1", vocab_size=120)
    second = trained(source, tmp_path / "2", vocab_size=120)
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_extending_a_saved_vocabulary_keeps_ids_and_rules(source: Path, tmp_path: Path) -> None:
    base = trained(source, tmp_path / "base", vocab_size=90, rules=WordRules(lowercase=False))
    domain = tmp_path / "domain.txt"
    domain.write_text("Ångström units of Ångström\n" * 4, encoding="utf-8")
    out = trained(domain, tmp_path / "out", vocab_size=110, extend=base)
    old, new = (read_vocabulary(folder) for folder in (base, out))
    assert new[0][:90] == old[0]
    assert len(new[0]) > 90
    assert new[1] == old[1] == WordRules(lowercase=False)
    assert (
        Tokenizer.from_file(str(out / "tokenizer.json")).encode("Ångström").tokens[1] == "Ångström"
    )


def test_fewer_pieces_than_asked_for_are_said(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = train_tokenizer(
        CorpusReader([source]), tmp_path / "out", VocabularySettings(vocab_size=5000)
    )
    assert done.vocab_size == len(read_vocabulary(tmp_path / "out")[0]) < 5000
    assert "instead of 5,000" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe"])
def test_bad_input_is_named_and_leaves_nothing(
    source: Path, tmp_path: Path, algorithm: Algorithm
) -> None:
    blank = tmp_path / "blank.txt"
    blank.write_text("\u200b\n", encoding="utf-8")  # a character that BERT's cleaning removes
    out = tmp_path / "out"
    with pytest.raises(CorpusError, match="no words"):
        trained(blank, out, algorithm=algorithm)
    with pytest.raises(ConfigError, match=r"at least|below"):
        trained(source, out, vocab_size=20, algorithm=algorithm)
    assert [path.name for path in tmp_path.iterdir()] == ["blank.txt"]


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size is 5"):
        VocabularySettings(vocab_size=5)
    with pytest.raises(ConfigError, match="alphabet_limit is 0"):
        VocabularySettings(alphabet_limit=0)
    with pytest.raises(ConfigError, match="wordpiece can extend"):
        VocabularySettings(algorithm="bpe", extend=Path("x"))


def test_an_existing_folder_is_not_touched(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists already"):
        trained(source, tmp_path)
    with pytest.raises(ConfigError, match="not a folder"):
        trained(source, tmp_path / "a" / "b")


def test_a_vocabulary_without_special_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(ModelError, match=r"no \[CLS\], \[SEP\], \[MASK\]"):
        read_vocabulary(tmp_path)
    with pytest.raises(ModelError, match="'a' twice"):
        bert_tokenizer([*SPECIAL_TOKENS, "a", "b", "a"], WordRules())
    with pytest.raises(ModelError, match="No vocabulary"):
        read_vocabulary(tmp_path / "absent")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[]", "holds no JSON object"),
        ("{", "cannot be read as JSON"),
        ('{"do_lower_case": "yes"}', "do_lower_case is 'yes'"),
        ('{"strip_accents": 1}', "strip_accents is 1"),
        ('{"tokenize_chinese_chars": null}', "tokenize_chinese_chars is None"),
    ],
)
def test_wrong_settings_of_a_vocabulary_are_named(
    source: Path, tmp_path: Path, settings: str, message: str
) -> None:
    base = trained(source, tmp_path / "base", vocab_size=90)
    (base / "tokenizer_config.json").write_text(settings)
    with pytest.raises(ModelError, match=message) as error:
        trained(source, tmp_path / "out", vocab_size=110, extend=base)
    assert str(base / "tokenizer_config.json") in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_failing_disk_leaves_no_half_folder(tmp_path: Path) -> None:
    class Full(Disk):
        def fsync(self, fd: int) -> None:
            raise OSError(28, "No space left on device")

    with use_disk(Full()), pytest.raises(OSError, match="No space"):
        save_vocabulary(tmp_path / "out", [*SPECIAL_TOKENS, "a"], WordRules())
    assert not (tmp_path / "out").exists()
    save_vocabulary(tmp_path / "out", [*SPECIAL_TOKENS, "a"], WordRules())
    assert read_vocabulary(tmp_path / "out")[0] == [*SPECIAL_TOKENS, "a"]


def test_a_folder_of_the_temporary_name_is_not_erased(source: Path, tmp_path: Path) -> None:
    own = tmp_path / "v.tmp" / "notes.txt"
    own.parent.mkdir()
    own.write_text("mine")
    with pytest.raises(ConfigError, match=r"v\.tmp is in the way"):
        trained(source, tmp_path / "v", vocab_size=60)
    assert own.read_text() == "mine"
    own.rename(own.with_name("vocab.txt"))  # as a killed process leaves it
    trained(source, tmp_path / "v", vocab_size=60)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v"]
