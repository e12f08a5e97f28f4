"""A masked language model, optionally with a classifier of segment pairs; it can fill masks.

NSP is next sentence prediction, and SOP is sentence order prediction.
A batch is packed: its rows are the tokens of all texts, one text after the other, without padding.
A layout is the published file format of one model family, such as bert or roberta.
"""

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
        """Compute the states from which the token head predicts tokens.

        Args:
            encoder: The encoder whose last block is applied.
            tokens: The batch: the tokens of all texts, one text after the other.
            before_last: Input of the last block for all tokens, float (tokens, hidden).

        Returns:
            Float (tokens, hidden).
        """
        block = encoder.blocks[encoder.config.block_order[-1]]
        distances = encoder.relative_distances(tokens)
        queries: Tensor = before_last + self.position(tokens.positions)
        for _ in range(STEPS):
            queries, _ = block(before_last, tokens, queries=queries, distances=distances)
        return queries


@dataclass(frozen=True, eq=False)
class MaskedBatch:
    """Masked examples as tensors.

    Attributes:
        tokens: Input of the model, with masks.
        positions: Row of each token to predict, int64 (n_masked,).
        labels: Original id of each token to predict, int64 (n_masked,).
        pair_labels: For each example, 1 if the second segment does not follow the first, else 0,
            int64 (n,).
    """

    tokens: PackedTokens
    positions: Tensor
    labels: Tensor
    pair_labels: Tensor

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
    """The output of a masked language model for a batch.

    Attributes:
        token_logits: Logits over the vocabulary for the tokens to predict, (n_masked, vocab).
        pair_logits: Logits of "follows" and "does not follow", float (n, 2); None if the model has
            no ``pair_head``.
        hidden_states: Last-layer states of all tokens of the batch, float (total, hidden), if they
            are requested or the model has a mask decoder; otherwise None.
    """

    token_logits: Tensor
    pair_logits: Tensor | None
    hidden_states: Tensor | None


class MaskedLanguageModel(nn.Module):
    """Predicts masked tokens; the output matrix is the embedding table of the encoder.

    Attributes:
        encoder: Computes hidden states.
        tokenizer: Turns texts into token ids; its ``max_len`` is the maximum number of tokens of a
            text.
        token_head: Computes logits over the vocabulary from hidden states.
        pair_head: Computes two logits from the pooled state of the first token, for NSP and SOP;
            None: the model does not classify pairs.
        mask_decoder: DeBERTa's decoder between the encoder and the token head; None: the token head
            reads the states of the encoder.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        pairs: bool = False,
        mask_decoder: bool = False,
    ) -> None:
        """Add new heads to an encoder.

        Raises:
            ConfigError: ``pairs`` is true, but the layout has no classifier of pairs or the encoder
                has no pooler. Or ``mask_decoder`` is true, but the layout has no mask decoder or
                the encoder has position embeddings.
            ModelError, WeightsError: As for `check_tokenizer`.
        """
        super().__init__()
        check_tokenizer(encoder, tokenizer)
        config = encoder.config
        self.layout = TOKEN_HEADS[config.layout]
        self.encoder, self.tokenizer = encoder, tokenizer
        self.token_head = TokenHead(config)
        self.pair_head: nn.Linear | None = None
        self.mask_decoder: MaskDecoder | None = None
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
        """Predict the tokens at some positions of a batch.

        Args:
            tokens: The batch.
            positions: Row of each token to predict, int64 (n_masked,).
            output_states: Whether to return the last-layer states of all tokens. If not, a model
                without a mask decoder saves time: for tokens that no head reads, its last block
                computes only keys and values.
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
        """Write a folder that transformers loads as the class named in its ``config.json``.

        Raises:
            ConfigError: The layout cannot store this encoder.
            ModelError: The folder already contains a model.
        """
        state = self.state_dict()
        head = {names[0]: state[own].cpu() for own, names in self._published().items()}
        architecture = self.layout.masked if self.pair_head is None else self.layout.paired
        settings = {"architectures": [architecture], **self.layout.settings}
        save_encoder(self.encoder, path, head=head, settings=settings)
        self.tokenizer.save(Path(path), segments=self.encoder.config.token_type_vocab > 1)

    @classmethod
    def load(cls, path: str | Path) -> MaskedLanguageModel:
        """Load a masked language model from a folder, in float32 on the CPU, in evaluation mode.

        Raises:
            ModelError: The folder contains no masked language model, or `Encoder` does not
                implement its architecture.
            WeightsError: The weights are damaged or do not fit the model's settings.
        """
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
        """Add heads to the encoder of a checkpoint; load the head weights that the checkpoint has.

        Raises:
            ConfigError, ModelError: As for `__init__`.
            WeightsError: A weight or the tokenizer does not fit, or the output matrix is not the
                embedding table.
        """
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
        for part in ("weight", "bias"):
            names[f"token_head.dense.{part}"] = (f"{layout.dense}.{part}",)
            names[f"token_head.norm.{part}"] = (f"{layout.norm}.{part}",)
            if self.pair_head is not None:
                names[f"pair_head.{part}"] = (f"{layout.pair}.{part}",)
        if self.mask_decoder is not None and layout.positions is not None:
            names["mask_decoder.position.weight"] = (layout.positions,)
        return names


def _has_pairs(read: Checkpoint) -> bool:
    """Whether a checkpoint has a classifier of segment pairs."""
    layout = TOKEN_HEADS[read.encoder.config.layout]
    return f"{layout.pair}.weight" in read.head and read.encoder.pooler is not None


@dataclass(frozen=True, slots=True)
class FilledMask:
    """One predicted token for one mask.

    Attributes:
        hole: Number of the mask among the masks of the text, from 0.
        rank: Rank of the token for this mask, from 1.
        token: The predicted token.
        probability: Probability of the token among the whole vocabulary.
        text: The text with the token in place of this mask.
    """

    hole: int
    rank: int
    token: str
    probability: float
    text: str


@torch.no_grad()
def fill_mask(model: MaskedLanguageModel, text: str, *, k: int = 5) -> list[FilledMask]:
    """Predict the token of each mask in a text.

    Each prediction fills one mask. Its text still contains the other masks.

    Args:
        model: Model in evaluation mode.
        text: A text with at least one mask, written as [MASK] or as the mask token of the
            model's tokenizer.
        k: Number of tokens to predict for each mask.

    Returns:
        Predictions in the order of the masks; for each mask, the most probable token first.

    Raises:
        QueryError: The text has no mask or more tokens than the model reads, or ``k`` is below 1.
        CorpusError: The text has a lone surrogate, which UTF-8 cannot encode.
        ModelError: As for `SpecialTokens.of`.
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
