"""A model that reads a pair of texts together and gives a score, or a logit per class."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sbert_search.errors import ModelError
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import activation_path, make_activation
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.native_support import pair_activation, why_no_native_pairs
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import SideFile
from sbert_search.text.labelled.texts import LabelKind
from sbert_search.text.tokens.tokenizer import TextTokenizer


class CrossEncoder(SequenceClassifier):
    """A classifier of text pairs whose folder sentence-transformers loads as a CrossEncoder.

    Attributes:
        activation: Function applied to the logits for predictions, not in training.
    """

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: TextTokenizer,
        *,
        labels: Sequence[str] = ("LABEL_0",),
        kind: LabelKind = "class",
        activation: nn.Module | None = None,
        segments: bool = True,
        side: SideFile | None = None,
    ) -> None:
        super().__init__(encoder, tokenizer, labels=labels, kind=kind, segments=segments, side=side)
        single = len(self.labels) == 1
        self.activation = activation or (nn.Sigmoid() if single else nn.Identity())

    def scores(self, tokens: PackedTokens) -> Tensor:
        """Compute scores, float32 (batch,), or (batch, labels) if the model has several labels.

        The logits are divided by the temperature first, which does not change a ranking by score.
        """
        scores: Tensor = self.activation(self(tokens).float() / self.temperature)
        return scores.squeeze(-1) if len(self.labels) == 1 else scores

    def _settings(self) -> dict[str, object]:
        activation = activation_path(self.activation)
        settings = super()._settings() | {
            "sentence_transformers": {"activation_fn": activation},
            "sbert_ce_default_activation_function": activation,  # key of sentence-transformers v3
        }
        del settings["problem_type"]  # transformers has no problem type for a score from 0 to 1
        return settings

    @classmethod
    def from_folder(cls, folder: ModelFolder) -> CrossEncoder:
        """Load a model as `load` does, from a folder that `read_folder` has read."""
        if reason := why_no_native_pairs(folder):
            raise ModelError(f"{folder.path}: {reason}. Use the engine sentence-transformers.")
        model = super().from_folder(folder)
        if path := pair_activation(folder):
            model.activation = make_activation(path)
        return model
