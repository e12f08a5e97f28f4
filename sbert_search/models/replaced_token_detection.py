"""ELECTRA: a small generator replaces words, and the encoder tells which tokens are replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sbert_search.encoder.block import ACTIVATIONS
from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.encoder import Encoder
from sbert_search.encoder.weights import Checkpoint, save_encoder
from sbert_search.errors import ConfigError
from sbert_search.models.pretraining import MaskedBatch, MaskedLanguageModel
from sbert_search.models.token_heads import fill_fresh
from sbert_search.tokens.tokenizer import TextTokenizer

_SHARED = ("word", "position", "token_type", "norm")  # parts of the embeddings
_HEAD = "discriminator_predictions"
GENERATOR = "generator"
"""Folder of the generator, inside the discriminator's."""


@dataclass(frozen=True, eq=False)
class ReplacedTokenOutput:
    """What generator and discriminator say of a batch.

    Attributes:
        generator_logits: The generator's logits at the masked positions, float (n_masked, vocab).
        logits: The discriminator's log-odds of a replaced token, float (total,).
        replaced: Whether it was replaced by another one, bool (total,).
    """

    generator_logits: Tensor
    logits: Tensor
    replaced: Tensor


class ReplacedTokenModel(nn.Module):
    """A discriminator with its generator, which share the embeddings.

    Attributes:
        generator: Masked language model, trained by its own loss alone.
        encoder: The discriminator's: what is kept for later.
        tokenizer: Texts to ids.

    Source: Clark et al. 2020, ELECTRA (arXiv:2003.10555), sections 2 and 3.2.
    """

    def __init__(
        self, encoder: Encoder, generator: EncoderConfig, tokenizer: TextTokenizer
    ) -> None:
        """Put a fresh head on the encoder and a fresh generator beside it.

        Raises:
            ConfigError: The layout is not electra's, or the generator's tables are of other sizes.
        """
        super().__init__()
        config = encoder.config
        tables = ("vocab_size", "table_size", "max_positions", "token_type_vocab", "layout")
        unlike = [name for name in tables if getattr(config, name) != getattr(generator, name)]
        if unlike or config.layout != "electra":
            raise ConfigError(
                f"Generator and discriminator share embeddings of the layout 'electra', but differ "
                f"in {', '.join(unlike) or 'layout'}; make model and generator agree."
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
        """Replace the masked tokens by draws of the generator, and look for them."""
        words = self.generator(batch.tokens, batch.positions).words
        drawn = draw(words.detach())
        ids = batch.tokens.input_ids.clone()
        ids[batch.positions] = drawn
        replaced = torch.zeros_like(ids, dtype=torch.bool)
        replaced[batch.positions] = drawn != batch.labels
        states = self.encoder(replace(batch.tokens, input_ids=ids)).hidden_states
        return ReplacedTokenOutput(words, self.detect(states), replaced)

    def detect(self, states: Tensor) -> Tensor:
        """Give the log-odds of a replaced token for each state; float (total,)."""
        logits: Tensor = self.out(self.activation(self.dense(states)))
        return logits.squeeze(-1)

    def save(self, path: str | Path) -> None:
        """Write the discriminator as ElectraForPreTraining, the generator in a folder inside it.

        Raises:
            ModelError: The folder holds a model already.
        """
        path = Path(path)
        layers = {"dense": self.dense, "dense_prediction": self.out}
        head = {
            f"{_HEAD}.{name}.{part}": tensor.cpu()
            for name, layer in layers.items()
            for part, tensor in layer.state_dict().items()
        }
        settings = {"architectures": ["ElectraForPreTraining"]}
        save_encoder(self.encoder, path, head=head, settings=settings)
        self.tokenizer.save(path, segments=self.encoder.config.token_type_vocab > 1)
        self.generator.save(path / GENERATOR)

    def take_head(self, read: Checkpoint) -> None:
        """Use the weights of a published discriminator's head, where a checkpoint has them."""
        for name, layer in (("dense", self.dense), ("dense_prediction", self.out)):
            names = {part: f"{_HEAD}.{name}.{part}" for part in ("weight", "bias")}
            if set(names.values()) <= read.head.keys():
                layer.load_state_dict({part: read.head[theirs] for part, theirs in names.items()})


def draw(logits: Tensor) -> Tensor:
    """Draw a word from the distribution of each row; int64 (n,), by torch's own generator."""
    noise = -torch.empty_like(logits, dtype=torch.float32).exponential_().log()  # Gumbel(0, 1)
    return (logits.float() + noise).argmax(-1)
