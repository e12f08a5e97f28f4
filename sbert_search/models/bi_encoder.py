"""A model that gives one embedding per text: encoder, pooling, dense layers, normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from sbert_search.base import files
from sbert_search.errors import ConfigError, ModelError, WeightsError
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import (
    WEIGHTS,
    load_encoder,
    published_state,
    read_tensors,
    save_encoder,
)
from sbert_search.models.heads import (
    AT_ONCE,
    ATTENTION_MEAN,
    Dense,
    Normalize,
    attention_mean,
    check_modes,
    pool,
)
from sbert_search.models.loading.folder import (
    ModelDescription,
    ModelFolder,
    load_tokenizer,
    read_folder,
    write_legacy_form,
)
from sbert_search.models.loading.modules import POOLING_KEYS, Module, pooling_modes
from sbert_search.models.loading.native_support import why_not_native
from sbert_search.text.tokens.tokenizer import TextTokenizer


class BiEncoder(nn.Module):
    """A sentence encoder that can be trained, applied, saved and loaded."""

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        pooling: Sequence[str] = ("mean",),
        head: Sequence[Dense | Normalize] = (),
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity: str = "cosine",
        truncate_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_modes(pooling)
        check_tokenizer(encoder, tokenizer)
        self.encoder, self.tokenizer = encoder, tokenizer
        self.pooling = tuple(pooling)  # modes; their results are concatenated in this order
        _check_widths(encoder.config.hidden_size * len(pooling), head)
        self.head = nn.Sequential(*head)  # applied in order
        self.prompts = dict(prompts or {})  # texts to put before an input, by name
        self.default_prompt_name = default_prompt_name  # None: no prompt
        self.similarity = similarity  # cosine, dot, euclidean or manhattan
        # None: all. It is only stored; `forward` returns all dimensions.
        self.truncate_dim = truncate_dim

    @property
    def dim(self) -> int:
        """Number of dimensions of an embedding before truncation."""
        sizes = [part.linear.out_features for part in self.head if isinstance(part, Dense)]
        return sizes[-1] if sizes else self.encoder.config.hidden_size * len(self.pooling)

    @property
    def needs_only_starts(self) -> bool:
        """Whether texts are found by `PackedTokens.starts` alone; see `Encoder`."""
        return self.encoder.needs_only_starts and AT_ONCE.keys() >= set(self.pooling)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Compute embeddings, float32 (batch, dim) in any precision, with all dimensions."""
        if self.pooling == (ATTENTION_MEAN,):
            output = self.encoder(tokens, output_attentions=True)
            pooled = attention_mean(output.hidden_states, tokens, output.attentions[-1])
        else:
            pooled = pool(self.encoder(tokens).hidden_states, tokens, self.pooling)
        embeddings: Tensor = self.head(pooled)
        return embeddings

    def describe(self) -> ModelDescription:
        """Return the description that the folder of this model will contain."""
        if ATTENTION_MEAN in self.pooling:
            raise ConfigError(
                f"Pooling {ATTENTION_MEAN} is for evaluation only: a sentence-transformers folder "
                "cannot hold it. Save with mean, cls, max or weightedmean."
            )
        modes = {key: mode in self.pooling for mode, key in POOLING_KEYS.items()}
        width = {"word_embedding_dimension": self.encoder.config.hidden_size}
        modules = [Module("Transformer", ""), Module("Pooling", "1_Pooling", {**width, **modes})]
        for index, part in enumerate(self.head, start=2):
            settings = part.settings() if isinstance(part, Dense) else {}
            kind = type(part).__name__
            modules.append(Module(kind, f"{index}_{kind}", settings))
        return ModelDescription(
            architecture=self.encoder.config.layout,
            modules=tuple(modules),
            max_len=self.tokenizer.max_len,
            prompts=self.prompts,
            default_prompt_name=self.default_prompt_name,
            similarity=self.similarity,
            truncate_dim=self.truncate_dim,
        )

    def require_savable(self) -> ModelDescription:
        """Return the description of the model; refuse a model that `save` could not write."""
        description = self.describe()
        if pooling_modes(description.modules[1]) != self.pooling:
            raise ConfigError(
                f"Pooling {'+'.join(self.pooling)} can be saved only in the order "
                f"{'+'.join(pooling_modes(description.modules[1]))}."
            )
        return description

    def save(self, path: str | Path) -> None:
        """Write a folder that sentence-transformers v3, v5 and v6 load with equal embeddings."""
        path, description = Path(path), self.require_savable()
        save_encoder(self.encoder, path)
        self.tokenizer.save(path, segments=self.encoder.config.token_type_vocab > 1)
        write_legacy_form(path, description)
        for index, part in enumerate(self.head, start=2):
            if isinstance(part, Dense):
                state = published_state({"linear": part.linear})
                folder = path / description.modules[index].folder
                files.write_new(folder / WEIGHTS, safetensors.torch.save(state, {"format": "pt"}))

    @classmethod
    def load(cls, path: str | Path) -> BiEncoder:
        """Load a folder of sentence-transformers or transformers, in float32 on the CPU."""
        return cls.from_folder(read_folder(Path(path)))

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> BiEncoder:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        if reason := why_not_native(folder):
            raise ModelError(f"{folder.path}: {reason}. Use the engine sentence-transformers.")
        description = folder.description
        return cls(
            load_encoder(folder.transformer_path),
            load_tokenizer(folder),
            pooling=pooling_modes(description.modules[1]),
            head=[_load_part(folder.path, module) for module in description.modules[2:]],
            prompts=description.prompts,
            default_prompt_name=description.default_prompt_name,
            similarity=description.similarity,
            truncate_dim=description.truncate_dim,
        ).eval()


def _check_widths(width: int, head: Sequence[Dense | Normalize]) -> None:
    """Refuse a Dense module that takes vectors of another size than those before it."""
    for part in head:
        if isinstance(part, Dense):
            if part.linear.in_features != width:
                raise ConfigError(
                    f"A Dense module takes vectors of {part.linear.in_features} dimensions, but "
                    f"those before it have {width}; choose another pooling, or another head."
                )
            width = part.linear.out_features


def check_tokenizer(encoder: Encoder, tokenizer: TextTokenizer) -> None:
    """Refuse a tokenizer without special tokens, or one too large for the encoder's tables."""
    if not tokenizer.single.size:
        raise ModelError("The tokenizer adds no special tokens to a text; encoders need them.")
    rows, positions = encoder.config.vocab_size, encoder.config.max_positions
    if tokenizer.vocab_size > rows:
        raise WeightsError(
            f"The tokenizer has {tokenizer.vocab_size:,} tokens and the embedding {rows:,} rows; "
            "take both from one model."
        )
    if encoder.config.position_embeddings and tokenizer.max_len > positions:
        raise WeightsError(
            f"Texts may have {tokenizer.max_len} tokens and the encoder has {positions} positions; "
            "lower max_len, or max_seq_length in a model folder."
        )


def _load_part(path: Path, module: Module) -> Dense | Normalize:
    if module.kind == "Normalize":
        return Normalize()
    try:
        dense = Dense.from_settings(module.settings)
    except ConfigError as error:
        raise ConfigError(f"{path / module.folder / 'config.json'}: {error}") from error
    state = read_tensors(path / module.folder)
    try:
        dense.load_state_dict(state)
    except RuntimeError as error:
        raise WeightsError(f"{path / module.folder}: {error}") from error
    return dense
