"""The language of lexical search is that of the texts, or the one that is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search import Index, LexicalSettings, SearchEngine
from sbert_search.errors import ConfigError
from sbert_search.index.settings import likely_language
from tests.cli.process import sbert_search

GERMAN = [
    "Die Garantie gilt für zwei Jahre, und wir ersetzen das Gerät, wenn es nicht mehr geht.",
    "Eine Rückgabe ist in den ersten dreißig Tagen möglich, aber nur mit der Rechnung.",
    "Wer die Mühle am Fluss besucht, sieht das Rad, das sich dort seit vielen Jahren dreht.",
]
FRENCH = ["Le moulin est au bord de la rivière, et la roue tourne avec les eaux du printemps."]
ENGLISH = ["The mill is by the river, and its wheel turns with the water in the spring."]


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (GERMAN * 6, "german"),
        (FRENCH * 15, "french"),
        (ENGLISH * 15, "english"),
        (GERMAN, "english"),  # too few words
        (["the menu of das Haus and its garden"] * 40, "english"),
        (["error 404 node xyz"] * 99, "english"),
        ([*ENGLISH * 15, *FRENCH * 5], "english"),
        ([], "english"),
    ],
)
def test_a_language_is_guessed_only_where_it_is_clear(texts: list[str], language: str) -> None:
    assert likely_language(texts) == language


def test_german_texts_are_found_in_any_inflection(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"{text} Nummer {n}." for n in range(6) for text in GERMAN]
    index = Index.from_texts(texts, model="hashing")
    said = capsys.readouterr().err
    assert "look German" in said
    assert "language=" in said
    assert index.state.manifest.lexical == LexicalSettings(language="german")
    assert len(SearchEngine(index).search("Garantien", mode="lexical")) == 6
    named = Index.from_texts(texts, model="hashing", language="english")
    assert named.state.manifest.lexical == LexicalSettings()
    assert not SearchEngine(named).search("Garantien", mode="lexical")


def test_a_named_language_keeps_the_other_settings() -> None:
    lexical = LexicalSettings(title_weight=5)
    index = Index.from_texts(GERMAN, model="hashing", lexical=lexical, language="german")
    assert index.state.manifest.lexical == LexicalSettings(language="german", title_weight=5)
    with pytest.raises(ConfigError, match="Unknown language 'germn'; did you mean 'german'"):
        Index.from_texts(GERMAN, model="hashing", language="germn")
    with pytest.raises(ConfigError, match="language is 'german', but lexical is None"):
        Index.from_texts(GERMAN, model="hashing", lexical=None, language="german")


def test_a_synced_folder_gives_the_language_of_a_new_index(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for n, text in enumerate(GERMAN * 6):
        (folder / f"{n}.md").write_text(text)
    options = ("--model", "hashing")
    made = sbert_search("index", "sync", tmp_path / "index", folder, *options)
    assert "look German" in made.err
    index = Index.open(tmp_path / "index")
    assert index.state.manifest.lexical == LexicalSettings(language="german")
    assert len(index) == 18
    english = ("--language", "english")
    made = sbert_search("index", "sync", tmp_path / "english", folder, *options, *english)
    assert "German" not in made.err
    index = Index.open(tmp_path / "english")
    assert index.state.manifest.lexical == LexicalSettings()


@pytest.mark.thorough
def test_the_default_model_is_said_to_be_for_english(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text(GERMAN[0])
    build = ("index", "build", tmp_path / "a.txt", "--out")
    said = sbert_search(*build, tmp_path / "named", "--language", "german").err
    assert "The default model is for English. To search German by meaning, choose" in said
    assert "--model intfloat/multilingual-e5-small --query-prompt 'query: '" in said
    for language in ("english", "none"):
        made = sbert_search(*build, tmp_path / language, "--language", language)
        assert (made.code, "for English" in made.err) == (0, False)
    capsys.readouterr()
    Index.from_texts(GERMAN, model="hashing", language="german")
    assert "for English" not in capsys.readouterr().err
    Index.from_texts(GERMAN, language="german", out=tmp_path / "python")
    assert 'prompts={"query": "query: "' in capsys.readouterr().err
