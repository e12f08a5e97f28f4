"""A recipe of an index build: corpus, model and settings in a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from sbert_search.config import from_mapping, read_toml
from sbert_search.embed.protocol import TextEmbedder
from sbert_search.errors import CorpusError, ModelMismatch
from sbert_search.index.building.build import BuildSettings
from sbert_search.index.building.model_check import as_embedder
from sbert_search.models.loading.identity import ModelIdentity, sha256_of

if TYPE_CHECKING:
    from sbert_search.embed.arguments import EmbedderOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRecipe(BuildSettings):
    """Everything that determines the content of an index.

    Attributes:
        corpus: Name of the corpus, by which a person can find it.
        sha256: SHA-256 of each file of the corpus, by its path in the folder; for a corpus of one
            file, by the file's name.
        model: Name or folder of the model; None: the default model.
        prompts: Texts to put before each ``query`` and ``document``, where they are not those of
            the model.
        weights_sha256: SHA-256 of the model's weights, since the model of a name may change; "":
            any weights.
    """

    corpus: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    weights_sha256: str = ""

    def check_corpus(self, source: Path) -> None:
        """Compare the files of a corpus, a folder or one file, with the hashes in the recipe."""
        for name, expected in self.sha256.items():
            file = source / name if source.is_dir() else source
            if not file.is_file() or file.name != Path(name).name:
                raise CorpusError(
                    f"{source} has no {name}, which the recipe for {self.corpus} names."
                )
            if (got := sha256_of(file)) != expected:
                raise CorpusError(
                    f"{file} has sha256 {got} and the recipe names {expected}; "
                    "this is another corpus. Remove the checksum from the recipe to use it."
                )

    def check_model(self, model: ModelIdentity) -> None:
        """Compare the weights of a model with the hash in the recipe."""
        if self.weights_sha256 and model.weights_sha256 != self.weights_sha256:
            raise ModelMismatch(
                f"{model.name} has weights sha256 {model.weights_sha256} and the recipe names "
                f"{self.weights_sha256}; remove weights_sha256 from the recipe to build anyway."
            )

    def open_model(self, **options: Unpack[EmbedderOptions]) -> TextEmbedder:
        """Open the model of the recipe, and compare its weights with the recipe."""
        if self.prompts and not options.get("prompts"):
            options["prompts"] = self.prompts
        embedder = as_embedder(self.model, **options)
        self.check_model(embedder.identity)
        return embedder


def load_recipe(path: Path) -> IndexRecipe:
    """Read a recipe."""
    return from_mapping(IndexRecipe, read_toml(path))
