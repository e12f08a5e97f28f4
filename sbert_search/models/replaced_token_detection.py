"""ELECTRA: a small generator replaces tokens, and a discriminator detects the replaced ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import ACTIVATIONS, Encoder
from sbert_search.models.encoder.weights import Checkpoint, published_state, save_encoder
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.models.token_heads import fill_fresh
from sbert_search.text.tokens.tokenizer import TextTokenizer

# Modules of `Embeddings` that both encoders share.
_SHARED = ("word", "position", "token_type", "norm")
_SHARED_NAMES = tuple(f"encoder.embeddings.{name}." for name in _SHARED)
_HEAD = "discriminator_predictions"
GENERATOR = "generator"
"""Name of the generator's folder, which is inside the discriminator's folder."""


@dataclass(frozen=True, eq=False)
class ReplacedTokenOutput:
    """The output of generator and discriminator for a batch."""

    generator_logits: Tensor  # for the masked tokens, float (n_masked, vocab)
    logits: Tensor  # log-odds that a token was replaced, float (total,)
    replaced: Tensor  # whether a token was replaced by another, bool (total,)


class ReplacedTokenModel(nn.Module):
    """A discriminator and a generator that share their embeddings.

    ``encoder`` is the discriminator's, which is used after pre-training. The discriminator's loss
    trains no part of the generator but the shared embeddings.

    Source: Clark et al. 2020, ELECTRA (arXiv:2003.10555), sections 2 and 3.2.
    """

    def __init__(
        self, encoder: Encoder, generator: EncoderConfig, tokenizer: TextTokenizer
    ) -> None:
        """Add a new head to the encoder, and make a new generator of the shape ``generator``."""
        super().__init__()
        config = encoder.config
        tables = ("vocab_size", "table_size", "max_positions", "token_type_vocab", "layout")
        differing = [name for name in tables if getattr(config, name) != getattr(generator, name)]
        if differing or config.layout != "electra":
            problem = (
                f"differ in {', '.join(differing)}"
                if differing
                else f"have the layout {config.layout!r}"
            )
            raise ConfigError(
                f"Discriminator and generator {problem}; they share their embeddings, so both need "
                "the layout 'electra' and equal vocab_size, embedding_size, max_positions and "
                "token_type_vocab."
            )
        self.encoder, self.tokenizer = encoder, tokenizer
        self.generator = MaskedLanguageModel(Encoder(generator), tokenizer)
        for part in _SHARED:
            setattr(self.generator.encoder.embeddings, part, getattr(encoder.embeddings, part))
        self.activation: Callable[[Tensor], Tensor] = ACTIVATIONS[config.activation]
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, 1)
        for layer in (self.dense, self.out):
            fill_fresh(layer, config)

    def forward(self, batch: MaskedBatch) -> ReplacedTokenOutput:
        """Replace masked tokens by samples of the generator, and detect the replaced tokens."""
        token_logits = self.generator(batch.tokens, batch.positions).token_logits
        drawn = draw(token_logits.detach())
        ids = batch.tokens.input_ids.clone()
        ids[batch.positions] = drawn
        replaced = torch.zeros_like(ids, dtype=torch.bool)
        replaced[batch.positions] = drawn != batch.labels
        states = self.encoder(replace(batch.tokens, input_ids=ids)).hidden_states
        return ReplacedTokenOutput(token_logits, self.detect(states), replaced)

    def detect(self, states: Tensor) -> Tensor:
        """Compute the log-odds that each token was replaced; float (total,)."""
        logits: Tensor = self.out(self.activation(self.dense(states)))
        return logits.squeeze(-1)

    def save(self, path: str | Path) -> None:
        """Write the discriminator as ElectraForPreTraining, the generator into `GENERATOR`."""
        path = Path(path)
        settings = {"architectures": ["ElectraForPreTraining"]}
        head = published_state(self._layers())
        save_encoder(self.encoder, path, head=head, settings=settings)
        self.tokenizer.save(path, segments=self.encoder.config.token_type_vocab > 1)
        self.generator.save(path / GENERATOR)

    def take_head(self, read: Checkpoint) -> None:
        """Load the weights of the discriminator's head, if the checkpoint has them."""
        for name, layer in self._layers().items():
            names = {part: f"{name}.{part}" for part in ("weight", "bias")}
            if set(names.values()) <= read.head.keys():
                layer.load_state_dict({part: read.head[name] for part, name in names.items()})

    def _layers(self) -> dict[str, nn.Linear]:
        """Return the layers of the discriminator's head by published name."""
        return {f"{_HEAD}.dense": self.dense, f"{_HEAD}.dense_prediction": self.out}

    def take_generator(self, read: Checkpoint) -> None:
        """Load a trained generator of the same shape, except for the shared embeddings."""
        config = self.generator.encoder.config
        if read.encoder.config != replace(config, pooler=read.encoder.config.pooler):
            raise ConfigError(
                "The generator of init_from has another shape than the recipe's; copy the table "
                "[generator] of the recipe that trained it."
            )
        trained = MaskedLanguageModel.on_checkpoint(read, self.tokenizer, pairs=False)
        own = self.generator.state_dict()
        shared = {name for name in own if name.startswith(_SHARED_NAMES)}
        given = trained.state_dict()
        self.generator.load_state_dict(
            {name: own[name] if name in shared else given[name] for name in own}
        )


def draw(logits: Tensor) -> Tensor:
    """Sample from the softmax of each row of logits (n, vocab) by torch's generator; int64 (n,)."""
    # The argmax of logits + Gumbel(0, 1) noise is a draw from their softmax.
    noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().log()
    return (logits.float() + noise).argmax(-1)
