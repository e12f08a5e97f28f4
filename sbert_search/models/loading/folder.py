"""Read and write the settings in a model folder of sentence-transformers, versions 2 to 6.

Reading does not import torch, since two of its uses need no torch: an index compares the identity
of a model before the model is loaded, and a cached ONNX graph embeds queries. Writing uses the
legacy format, small JSON files that versions 3, 5 and 6 of sentence-transformers load; versions 3
and 5 cannot load the format of version 6.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sbert_search.base.files import replace_file
from sbert_search.base.progress import warn
from sbert_search.config import from_mapping
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.identity import sha256_of_files
from sbert_search.models.loading.modules import (
    Module,
    pooling_modes,
    processing_limit,
    read_if_present,
    read_modules,
    refuse_pickles,
)

if TYPE_CHECKING:
    from sbert_search.text.tokens.tokenizer import TextTokenizer

_EMBEDDING = "sentence_embedding"  # under this name, modules pass on the vector of a text
# A maximum of this many tokens or more means "no limit", for which transformers writes 1e30.
_NO_LIMIT = 1_000_000
# Sets of files that define a tokenizer; the first set that exists is the tokenizer of the model.
_TOKENIZERS = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("sentencepiece.bpe.model",),
    ("spiece.model",),
    ("spm.model",),
    ("tokenizer.model",),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDescription:
    """Settings on which the embeddings of a bi-encoder depend, besides weights and tokenizer."""

    architecture: str  # ``model_type`` of the Transformer, or kind of another first module
    modules: tuple[Module, ...]  # in order of application
    max_len: int  # most tokens of a text, special tokens included
    prompts: Mapping[str, str] = field(default_factory=dict)  # texts before an input, by name
    default_prompt_name: str | None = None  # None: no prompt
    similarity: str = "cosine"  # cosine, dot, euclidean or manhattan
    truncate_dim: int | None = None  # number of leading dimensions to keep; None: all

    @property
    def pooling(self) -> str:
        """Pooling modes joined by "+", then the kinds of later modules: ``cls+mean>Dense``.

        A Normalize module at the end is left out if it normalises the embeddings.
        """
        steps = [
            "+".join(pooling_modes(module)) if module.kind == "Pooling" else module.kind
            for module in self.modules[1 : -1 if self.normalize else None]
        ]
        return ">".join(steps)

    @property
    def normalize(self) -> bool:
        """Whether embeddings have norm 1 before truncation."""
        last = self.modules[-1]
        read = last.settings.get("module_input_name") or _EMBEDDING
        written = last.settings.get("module_output_name") or read
        return last.kind == "Normalize" and read == written == _EMBEDDING

    @property
    def unused_prompts(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The tasks without a prompt, and the prompts that no task uses; empty if either is empty.

        A prompt with the name of a task, query or document, is used for that task. Any other prompt
        may be meant for one: sentence-transformers' own examples have a prompt "passage".
        """
        bare = tuple(task for task in ("query", "document") if not self.prompt(task))
        tasks = ("query", "document", self.default_prompt_name)
        unused = tuple(name for name, text in self.prompts.items() if text and name not in tasks)
        return (bare, unused) if bare and unused else ((), ())

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt, "" if there is none.

        None names the default prompt or, if there is no default, the prompt "". The names query and
        document are allowed even if the model has no such prompt; any other unknown name is
        refused.
        """
        name = name or self.default_prompt_name
        if name is None or name in ("query", "document"):
            return self.prompts.get(name or "", "")
        if name not in self.prompts:
            known = ", ".join(self.prompts) or "none"
            raise ConfigError(f"The model has no prompt {name!r}; it has: {known}.")
        return self.prompts[name]


@dataclass(frozen=True)
class _Stated:
    """The keys of ``config_sentence_transformers.json`` that this package uses."""

    prompts: Mapping[str, str | None] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: str = "cosine"
    truncate_dim: int | None = None


class ModelFolder(NamedTuple):
    """A model folder, with the settings in its files, each {} if the file does not exist.

    A folder of plain transformers, without ``modules.json``, has the modules Transformer and mean
    Pooling, as in sentence-transformers.
    """

    path: Path
    description: ModelDescription
    transformer: Mapping[str, object]  # ``config.json`` of the Transformer module
    tokenizer: Mapping[str, object]  # ``tokenizer_config.json``
    settings: Mapping[str, object]  # ``config_sentence_transformers.json``

    @property
    def stated_max_len(self) -> int:
        """Most tokens of a text by the settings; the model may have fewer positions."""
        return _max_len(self.path, self.description.modules[0], self.tokenizer, self.transformer)

    @property
    def class_name(self) -> str:
        """Class in transformers, by ``config.json``; "(not named)" if that names none."""
        listed = self.transformer.get("architectures")
        return str(listed[0]) if isinstance(listed, list) and listed else "(not named)"

    @property
    def transformer_path(self) -> Path:
        """Folder with the encoder's weights and the tokenizer."""
        return self.path / self.description.modules[0].folder

    def weights_sha256(self) -> str:
        """Hash of all weights."""
        names: list[str] = []
        for folder in sorted({module.folder for module in self.description.modules}):
            found = (self.path / folder).glob("*.safetensors")
            of_module = sorted(str(file.relative_to(self.path)) for file in found)
            if not of_module:
                refuse_pickles(self.path / folder)
            names += of_module
        if not names:
            raise ModelError(f"{self.path} holds no model.safetensors; name a model folder.")
        return sha256_of_files(self.path, names)

    def tokenizer_sha256(self) -> str:
        """Hash of the files that define the tokenizer."""
        folder = self.transformer_path
        for names in _TOKENIZERS:
            if all((folder / name).is_file() for name in names):
                others = [] if names == ("tokenizer.json",) else ["tokenizer_config.json"]
                existing = [name for name in others if (folder / name).is_file()]
                return sha256_of_files(folder, [*names, *existing])
        known = ", ".join(" with ".join(names) for names in _TOKENIZERS)
        raise ModelError(f"{folder} holds no tokenizer: none of {known}.")


def read_folder(path: Path) -> ModelFolder:
    """Read the settings in a model folder; refuse modules outside it or not supported."""
    if not path.is_dir():
        raise ModelError(f"{path} is not a folder; pass a model folder or a name on the hub.")
    modules = read_modules(path)
    root = path / modules[0].folder
    if (root / "adapter_model.safetensors").is_file():
        raise ModelError(
            f"{root} holds an adapter of PEFT, which this package does not apply; merge it into "
            "its base model (merge_and_unload) and save the result."
        )
    transformer = read_if_present(root / "config.json")
    if modules[0].kind == "Transformer" and not transformer:
        raise ModelError(f"{root} holds no config.json; name a model folder.")
    tokenizer = read_if_present(root / "tokenizer_config.json")
    settings = read_if_present(path / "config_sentence_transformers.json")
    stated = _stated(path, settings)
    positions = None
    if modules[0].kind == "Transformer":
        # Imported here, so that queries by a static table do not wait for it.
        from sbert_search.models.encoder.layouts import most_positions

        positions = most_positions(transformer)
    return ModelFolder(
        path=path,
        description=ModelDescription(
            architecture=str(transformer.get("model_type", modules[0].kind)),
            modules=modules,
            max_len=min(
                _max_len(path, modules[0], tokenizer, transformer),
                positions or _NO_LIMIT,
            ),
            prompts={name: text or "" for name, text in stated.prompts.items()},
            default_prompt_name=stated.default_prompt_name,
            similarity=stated.similarity_fn_name,
            truncate_dim=stated.truncate_dim,
        ),
        transformer=transformer,
        tokenizer=tokenizer,
        settings=settings,
    )


def _stated(path: Path, settings: Mapping[str, object]) -> _Stated:
    values = {key: value for key, value in settings.items() if value is not None}
    try:
        return from_mapping(_Stated, values, others=True)
    except ConfigError as error:
        raise ModelError(f"{path / 'config_sentence_transformers.json'}: {error}") from error


def load_tokenizer(folder: ModelFolder) -> TextTokenizer:
    """Read the tokenizer of a model."""
    # Imported here, since the import loads the library tokenizers. Most functions of this module do
    # not need that library.
    from sbert_search.text.tokens.tokenizer import TextTokenizer

    description = folder.description
    if "max_seq_length" in description.modules[0].settings:
        note_positions(folder.path, folder.stated_max_len, description.max_len)
    lower = bool(description.modules[0].settings.get("do_lower_case"))
    return TextTokenizer.from_folder(
        folder.transformer_path, description.max_len, do_lower_case=lower
    )


def note_positions(where: object, stated: int, positions: int) -> None:
    """Warn the user if a model has fewer positions than its setting ``max_seq_length`` says."""
    if stated > positions:
        warn(
            f"{where}: max_seq_length is {stated}, but the model has {positions} positions; "
            f"texts are truncated to {positions} tokens."
        )


def write_legacy_form(path: Path, description: ModelDescription) -> None:
    """Write the JSON files that turn a transformers folder into a sentence-transformers folder."""
    listing = [
        {
            "idx": n,
            "name": str(n),
            "path": m.folder,
            "type": f"sentence_transformers.models.{m.kind}",
        }
        for n, m in enumerate(description.modules)
    ]
    settings: dict[str, object] = {
        "__version__": {},
        "prompts": dict(description.prompts),
        "default_prompt_name": description.default_prompt_name,
        "similarity_fn_name": description.similarity,
    }
    if description.truncate_dim is not None:
        settings["truncate_dim"] = description.truncate_dim
    _write_json(path / "modules.json", listing)
    _write_json(path / "config_sentence_transformers.json", settings)
    limits = {"max_seq_length": description.max_len, "do_lower_case": False}
    _write_json(path / "sentence_bert_config.json", limits)
    for module in description.modules[1:]:
        (path / module.folder).mkdir(exist_ok=True)
        _write_json(path / module.folder / "config.json", module.settings)


def _max_len(
    path: Path,
    module: Module,
    tokenizer: Mapping[str, object],
    transformer: Mapping[str, object],
) -> int:
    """Maximum number of tokens of a text, special tokens included.

    The ``max_length`` in the module's ``processing_kwargs`` decides, else its ``max_seq_length``,
    else the lowest limit in the settings of tokenizer and encoder; without any limit, 512.
    """
    where = path / module.folder
    if own := processing_limit(where, module.settings.get("processing_kwargs")):
        return own
    limit = module.settings.get("max_seq_length")
    if limit is not None:
        return _tokens("max_seq_length", limit)
    named = {
        "model_max_length": tokenizer.get("model_max_length"),
        "max_position_embeddings": transformer.get("max_position_embeddings"),
    }
    limits = [_tokens(name, n) for name, n in named.items() if n is not None]
    return min((n for n in limits if 0 < n < _NO_LIMIT), default=512)


def _tokens(name: str, limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not abs(limit) < math.inf:
        raise ModelError(f"{name} is {limit!r}; it must be a number of tokens.")
    return int(limit)


def _write_json(path: Path, value: object) -> None:
    replace_file(path, (json.dumps(value, indent=2) + "\n").encode())
