"""A masked language model, optionally with a classifier of segment pairs; it can fill masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sbert_search.errors import ConfigError, ModelError, QueryError, WeightsError
from sbert_search.models.bi_encoder import check_tokenizer
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import Checkpoint, read_checkpoint, save_encoder
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from sbert_search.models.token_heads import TOKEN_HEADS, TokenHead, fill_fresh
from sbert_search.text.tokens.mlm_dataset import MaskedExamples
from sbert_search.text.tokens.specials import SpecialTokens
from sbert_search.text.tokens.tokenizer import TextTokenizer

STEPS = 2  # number of times that the last block is applied


class MaskDecoder(nn.Module):
    """Applies the encoder's last block twice, with absolute positions added to the queries.

    The first queries are the input of the block plus embeddings of absolute positions. The second
    queries are the output of the first application. Keys and values come from the input of the
    block in both applications.

    Source: He et al. 2021, DeBERTa, section 3.2 (arXiv:2006.03654). The last block is applied twice
    with the same weights, as by ``emd_context_layer`` in microsoft/DeBERTa.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.position = nn.Embedding(config.max_positions, config.hidden_size)
        nn.init.normal_(self.position.weight, std=config.initializer_range)

    def forward(self, encoder: Encoder, tokens: PackedTokens, before_last: Tensor) -> Tensor:
        """Compute the states from which the token head predicts tokens, float (tokens, hidden)."""
        block = encoder.blocks[encoder.config.block_order[-1]]
        relative = encoder.relative_positions(tokens)
        queries: Tensor = before_last + self.position(tokens.positions)
        for _ in range(STEPS):
            queries, _ = block(before_last, tokens, queries=queries, relative=relative)
        return queries


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Masked examples as tensors."""

    tokens: PackedTokens  # with masks
    positions: Tensor  # row of each token to predict, int64 (n_masked,)
    labels: Tensor  # original id of each token to predict, int64 (n_masked,)
    pair_labels: Tensor  # of each example, 1 if its second segment does not follow, int64 (n,)

    @classmethod
    def of(cls, examples: MaskedExamples, *, segments: bool) -> MaskedBatch:
        """Convert examples to tensors; if ``segments`` is false, the batch has no segment ids."""
        tokens = PackedTokens(
            torch.from_numpy(examples.input_ids),
            tuple(examples.lengths.tolist()),
            torch.from_numpy(examples.token_type_ids) if segments else None,
        )
        others = (examples.positions, examples.labels, examples.pair_labels)
        return cls(tokens, *map(torch.from_numpy, others))

    def to(self, device: torch.device) -> MaskedBatch:
        """Copy the batch to a device."""
        others = (self.positions, self.labels, self.pair_labels)
        moved = (tensor.to(device, non_blocking=True) for tensor in others)
        return MaskedBatch(self.tokens.to(device, non_blocking=True), *moved)


@dataclass(frozen=True, eq=False)
class MaskedLMOutput:
    """The output of a masked language model for a batch."""

    token_logits: Tensor  # for the tokens to predict, (n_masked, vocab)
    pair_logits: Tensor | None  # "follows" and "does not", float (n, 2); None: no ``pair_head``
    # Last-layer states, float (total, hidden), if requested or if there is a mask decoder.
    hidden_states: Tensor | None


class MaskedLanguageModel(nn.Module):
    """Predicts masked tokens; the output matrix is the embedding table of the encoder."""

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        pairs: bool = False,
        mask_decoder: bool = False,
    ) -> None:
        """Add new heads to an encoder."""
        super().__init__()
        check_tokenizer(encoder, tokenizer)
        config = encoder.config
        self.layout = TOKEN_HEADS[config.layout]
        self.encoder, self.tokenizer = encoder, tokenizer
        self.token_head = TokenHead(config)
        self.pair_head: nn.Linear | None = None  # two logits from the pooled first state
        self.mask_decoder: MaskDecoder | None = None  # between encoder and head
        if pairs:
            if self.layout.pair is None or encoder.pooler is None:
                raise ConfigError(
                    f"The layout {config.layout!r} (pooler: {encoder.pooler is not None}) cannot "
                    "classify pairs of segments; use segments.kind full-sentences, or a bert or "
                    "albert with model.pooler."
                )
            self.pair_head = nn.Linear(config.hidden_size, 2)
            fill_fresh(self.pair_head, config)
        if mask_decoder:
            if self.layout.positions is None or config.position_embeddings:
                raise ConfigError(
                    "A mask decoder adds absolute positions to an encoder that has none: use the "
                    "layout 'deberta' with model.position_embeddings = false."
                )
            self.mask_decoder = MaskDecoder(config)

    def forward(
        self, tokens: PackedTokens, positions: Tensor, *, output_states: bool = False
    ) -> MaskedLMOutput:
        """Predict the tokens at ``positions``, rows of the batch, int64 (n_masked,).

        Unless the states of all tokens are to be output, a model without a mask decoder saves time:
        for tokens that no head reads, its last block computes only keys and values.
        """
        if self.mask_decoder is not None:
            return self._decoded(tokens, positions)
        rows = positions
        if self.pair_head is not None:
            rows = torch.cat([positions, tokens.first_rows.long()])
        if output_states:
            states: Tensor = self.encoder(tokens).hidden_states
            selected = states[rows]
        else:
            selected = self.encoder(tokens, rows=rows).hidden_states
        masked, firsts = selected[: len(positions)], selected[len(positions) :]
        return MaskedLMOutput(
            self._token_logits(masked),
            None if self.pair_head is None else self.pair_head(self.encoder.pool_first(firsts)),
            states if output_states else None,
        )

    def _decoded(self, tokens: PackedTokens, positions: Tensor) -> MaskedLMOutput:
        """Predict with the mask decoder, which needs the input of the last block."""
        assert self.mask_decoder is not None
        ordered = tokens.by_length()
        out = self.encoder(ordered.tokens, output_layers=True)
        decoded = self.mask_decoder(self.encoder, ordered.tokens, out.layer_states[-2])
        logits = self._token_logits(decoded[ordered.ordered_rows(positions)])
        return MaskedLMOutput(logits, None, ordered.restore(out.hidden_states))

    def _token_logits(self, states: Tensor) -> Tensor:
        logits: Tensor = self.token_head(states, self.encoder.embeddings.word.weight)
        return logits

    def save(self, path: str | Path) -> None:
        """Write a folder that transformers loads as the class named in its ``config.json``."""
        state = self.state_dict()
        head = {names[0]: state[own].cpu() for own, names in self._published().items()}
        architecture = self.layout.masked if self.pair_head is None else self.layout.paired
        settings = {"architectures": [architecture], **self.layout.settings}
        save_encoder(self.encoder, path, head=head, settings=settings)
        self.tokenizer.save(Path(path), segments=self.encoder.config.token_type_vocab > 1)

    @classmethod
    def load(cls, path: str | Path) -> MaskedLanguageModel:
        """Load a folder in float32 on the CPU, in evaluation mode; it must have a token head."""
        folder = read_folder(Path(path))
        read = read_checkpoint(folder.transformer_path)
        model = cls.on_checkpoint(read, load_tokenizer(folder), pairs=_has_pairs(read))
        if missing := sorted({*model._published()} - {*model._given(read.head)}):
            raise ModelError(
                f"{path} has no masked-language head (no {model._published()[missing[0]][0]}): it "
                "cannot predict masked tokens. Name a model that was pre-trained with one."
            )
        return model.eval()

    @classmethod
    def on_checkpoint(
        cls, read: Checkpoint, tokenizer: TextTokenizer, *, pairs: bool
    ) -> MaskedLanguageModel:
        """Add heads to the encoder of a checkpoint, with the head weights that it has."""
        layout = TOKEN_HEADS[read.encoder.config.layout]
        model = cls(
            read.encoder, tokenizer, pairs=pairs, mask_decoder=layout.positions in read.head
        )
        table = read.encoder.embeddings.word.weight
        decoder = read.head.get(layout.decoder, table)
        if decoder.shape != table.shape or not torch.equal(decoder, table):
            raise WeightsError(
                f"{layout.decoder} is not the embedding table; models whose output matrix is not "
                "shared with the input are not supported."
            )
        try:
            model.load_state_dict(model._given(read.head), strict=False)
        except RuntimeError as error:
            raise WeightsError(f"The head does not fit the encoder: {error}") from error
        return model

    def left_out(self, head: Mapping[str, Tensor]) -> list[str]:
        """Return the names of a checkpoint's head parameters that this model does not have."""
        known = {name for names in self._published().values() for name in names}
        return sorted(head.keys() - known - {self.layout.decoder})

    def _given(self, head: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the head weights in a checkpoint, by the parameter names of this model."""
        published = self._published().items()
        # Reversed, so that the first of several published names overwrites the others.
        return {own: head[n] for own, names in published for n in reversed(names) if n in head}

    def _published(self) -> dict[str, tuple[str, ...]]:
        """Published names of each head parameter of this model; `save` uses the first name."""
        layout = self.layout
        names: dict[str, tuple[str, ...]] = {"token_head.bias": layout.biases}
        heads = {"token_head.dense": layout.dense, "token_head.norm": layout.norm}
        if self.pair_head is not None:
            heads["pair_head"] = str(layout.pair)
        for own, published in heads.items():
            for part in self.get_submodule(own).state_dict():
                names[f"{own}.{part}"] = (f"{published}.{part}",)
        if self.mask_decoder is not None and layout.positions is not None:
            names["mask_decoder.position.weight"] = (layout.positions,)
        return names


def _has_pairs(read: Checkpoint) -> bool:
    layout = TOKEN_HEADS[read.encoder.config.layout]
    return f"{layout.pair}.weight" in read.head and read.encoder.pooler is not None


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One predicted token for one mask."""

    hole: int  # number of the mask in the text, from 0
    rank: int  # among the tokens for this mask, from 1
    token: str
    probability: float  # among the whole vocabulary
    text: str  # with the token in place of this mask; the other masks stay


@torch.no_grad()
def fill_mask(model: MaskedLanguageModel, text: str, *, k: int = 5) -> list[FilledMask]:
    """Predict the ``k`` most probable tokens of each mask, in order of the masks, best first.

    The model is in evaluation mode. A mask is written as [MASK] or as the mask token of the model's
    tokenizer.
    """
    special = SpecialTokens.of(model.tokenizer)
    text = text.replace("[MASK]", special.mask)
    (ids,), truncated = model.tokenizer.encode([text])
    positions = [position for position, token in enumerate(ids) if token == special.mask_id]
    if truncated[0]:
        raise QueryError(
            f"The text has {truncated[0]} tokens more than the {model.tokenizer.max_len} that the "
            "model reads; shorten it."
        )
    if not positions:
        raise QueryError(
            f"{text!r:.200} has no mask; write {special.mask} where a word is missing."
        )
    if k < 1:
        raise QueryError(f"k is {k}; it must be at least 1.")
    device = next(model.parameters()).device
    tokens = PackedTokens.from_lists([ids], device=device)
    logits = model(tokens, torch.tensor(positions, device=device)).token_logits.float()
    best = logits.softmax(-1).topk(min(k, logits.shape[1]))
    filled_masks = []
    for hole, (position, probabilities, token_ids) in enumerate(
        zip(positions, best.values.tolist(), best.indices.tolist(), strict=True)
    ):
        for rank, (probability, token_id) in enumerate(
            zip(probabilities, token_ids, strict=True), start=1
        ):
            filled = [*ids[1:position], token_id, *ids[position + 1 : -1]]
            token = model.tokenizer.backend.id_to_token(token_id) or ""
            filled_text = model.tokenizer.backend.decode(filled, skip_special_tokens=False)
            filled_masks.append(FilledMask(hole, rank, token, probability, filled_text))
    return filled_masks
