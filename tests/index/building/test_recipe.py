import hashlib
from pathlib import Path

import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.errors import ConfigError, CorpusError, ModelMismatch
from sbert_search.index.building.recipe import IndexRecipe, load_recipe
from tests.cli.process import ROOT

RECIPES = sorted((ROOT / "indexes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.corpus
    assert recipe.sha256


def test_another_corpus_is_refused(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(b"{}")
    recipe = IndexRecipe(
        corpus="two bytes", sha256={"corpus.jsonl": hashlib.sha256(b"{}").hexdigest()}
    )
    recipe.check_corpus(tmp_path)
    recipe.check_corpus(corpus)
    corpus.write_bytes(b"{ }")
    with pytest.raises(CorpusError, match="this is another corpus"):
        recipe.check_corpus(tmp_path)
    corpus.rename(tmp_path / "other.jsonl")
    with pytest.raises(CorpusError, match=r"no corpus\.jsonl, which the recipe for two bytes"):
        recipe.check_corpus(tmp_path)
    with pytest.raises(CorpusError, match=r"no corpus\.jsonl"):
        recipe.check_corpus(tmp_path / "other.jsonl")


def test_another_model_is_refused() -> None:
    identity = HashingEmbedder().identity
    IndexRecipe(corpus="any").check_model(identity)
    IndexRecipe(corpus="any", weights_sha256=identity.weights_sha256).check_model(identity)
    with pytest.raises(ModelMismatch, match="hashing has weights sha256"):
        IndexRecipe(corpus="any", weights_sha256="0" * 64).check_model(identity)


def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('corpus = "x"\n[spec]\nfactroy = "Flat"\n')
    with pytest.raises(ConfigError, match=r"spec\.factroy'; did you mean 'factory'"):
        load_recipe(path)
