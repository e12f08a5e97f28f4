"""The base of models with a task head: an encoder and layers that give a logit per label."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

from torch import nn

from sbert_search.errors import ModelError, WeightsError
from sbert_search.models.bi_encoder import check_tokenizer
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.weights import (
    Checkpoint,
    first_names,
    load_encoder,
    published_state,
    read_checkpoint,
    save_encoder,
)
from sbert_search.models.loading.folder import ModelFolder, load_tokenizer, read_folder
from sbert_search.models.loading.native_support import gets_segment_ids, why_no_native_head
from sbert_search.models.side_file import SideFile, read_side_file, write_side_file
from sbert_search.text.tokens.tokenizer import TextTokenizer


class HeadModel(nn.Module, ABC):
    """An encoder with a head, in the folder format of transformers."""

    TASK: ClassVar[str]  # end of the name of the class in transformers

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str],
        segments: bool,
        side: SideFile,
    ) -> None:
        super().__init__()
        check_tokenizer(encoder, tokenizer)
        self.encoder, self.tokenizer, self.labels = encoder, tokenizer, tuple(labels)
        self.temperature = side.temperature  # `forward` does not apply it
        self.gets_segment_ids = segments and encoder.config.token_type_vocab > 1

    def save(self, path: str | Path) -> None:
        """Write a folder that transformers loads as its class for this task."""
        path = Path(path)
        head = published_state(self._layers())
        save_encoder(self.encoder, path, head=head, settings=self._settings())
        self.tokenizer.save(path, segments=self.gets_segment_ids)
        write_side_file(path, self._side())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a folder of this package or of transformers, in float32 on the CPU."""
        return cls.from_folder(read_folder(Path(path)))

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> Self:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        architecture, out = cls._published(folder.description.architecture)
        if reason := why_no_native_head(folder, architecture):
            raise ModelError(
                f"{folder.path}: {reason}. Use a folder of {architecture or cls.TASK}."
            )
        read = read_checkpoint(folder.transformer_path)
        model = cls(
            read.encoder,
            load_tokenizer(folder),
            labels=_read_labels(read, out, folder.path),
            segments=gets_segment_ids(folder),
            side=read_side_file(folder.path),
        )
        model._take_settings(read.settings, folder.path)
        _fill_head(model._layers(), read, folder.path)
        return model.eval()

    @classmethod
    @abstractmethod
    def _published(cls, layout: str) -> tuple[str, str]:
        """Return the class in transformers and the name of the last layer; "" if there is none."""

    @abstractmethod
    def _layers(self) -> dict[str, nn.Module]:
        """Return the layers after the encoder by published name."""

    @abstractmethod
    def _side(self) -> SideFile:
        """Return the settings that ``config.json`` cannot hold."""

    def _settings(self) -> dict[str, object]:
        """Return the keys of ``config.json`` for the head."""
        architecture, _ = self._published(self.encoder.config.layout)
        return {
            "architectures": [architecture],
            "id2label": {str(n): label for n, label in enumerate(self.labels)},
            "label2id": {label: n for n, label in enumerate(self.labels)},
        }

    def _take_settings(self, settings: Mapping[str, object], path: Path) -> None:
        """Set what the keys of ``config.json`` in ``path`` say of the head besides its labels."""


def start_encoder(
    path: str | Path, max_len: int | None, *, random_weights: bool
) -> tuple[Encoder, TextTokenizer]:
    """Load encoder and tokenizer for a new head, as `SequenceClassifier.start` does."""
    folder = read_folder(Path(path))
    encoder, tokenizer = load_encoder(folder.transformer_path), load_tokenizer(folder)
    if random_weights:
        encoder = Encoder(encoder.config)
    if max_len is not None:
        tokenizer = TextTokenizer(tokenizer.backend, max_len, folder=tokenizer.folder)
    return encoder, tokenizer


def with_pooler(encoder: Encoder, pooler: bool) -> Encoder:
    """Return the encoder with or without a pooler; a pooler that is added has random weights."""
    if (encoder.pooler is not None) == pooler:
        return encoder
    other = Encoder(replace(encoder.config, pooler=pooler))
    other.load_state_dict(encoder.state_dict(), strict=False)
    return other


def _read_labels(read: Checkpoint, out: str, path: Path) -> list[str]:
    """Return the names of the outputs of the last layer, ``out``; LABEL_n if class n has none."""
    if f"{out}.weight" not in read.head:
        raise WeightsError(f"{path} holds no {out}.weight; it is not a classifier.")
    names = read.settings.get("id2label")
    names = names if isinstance(names, dict) else {}
    count = read.head[f"{out}.weight"].shape[0]
    return [str(names.get(str(n), f"LABEL_{n}")) for n in range(count)]


def _fill_head(layers: Mapping[str, nn.Module], read: Checkpoint, path: Path) -> None:
    """Load the weights of a head into ``layers``, a mapping from published names to layers."""
    for name, layer in layers.items():
        state = {part: read.head.get(f"{name}.{part}") for part in layer.state_dict()}
        try:
            layer.load_state_dict(state)
        except (RuntimeError, AttributeError) as error:
            raise WeightsError(f"{path}: {name} does not fit: {error}") from error
    parts = {f"{name}.{part}" for name, each in layers.items() for part in each.state_dict()}
    prefixes = {name.partition(".")[0] for name in layers}
    left = [n for n in read.head if n not in parts and n.partition(".")[0] in prefixes]
    if left:
        raise WeightsError(
            f"{path}: the head does not use {first_names(sorted(left))} of the weights. "
            "Take config.json and weights from one model."
        )
