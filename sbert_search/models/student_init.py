"""Initialise a student model for distillation with layers of its teacher model."""

from __future__ import annotations

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.encoder import Encoder
from sbert_search.errors import ConfigError
from sbert_search.models.pretraining import MaskedLanguageModel

_SAME = ("vocab_size", "hidden_size", "heads", "intermediate_size", "max_positions")


def make_student(teacher: MaskedLanguageModel, config: EncoderConfig) -> MaskedLanguageModel:
    """Make a student with copies of the embeddings, some blocks and the token head of its teacher.

    Args:
        teacher: The model to copy from.
        config: Configuration of the student's encoder, with at most as many layers as the teacher.
            Segment embeddings are not copied.

    Raises:
        ConfigError: Vocabulary, width, heads, inner width or positions of the two differ, the
            student has more layers, or layers of the teacher share weights.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108), which takes every other
    layer.
    """
    source = teacher.encoder.config
    differing = [name for name in _SAME if getattr(config, name) != getattr(source, name)]
    if differing or config.layers > source.layers or source.n_blocks != source.layers:
        shown = ", ".join(f"{n} {getattr(config, n)} and {getattr(source, n)}" for n in differing)
        raise ConfigError(
            f"The student cannot start with its teacher's layers ({shown or 'layers'}): its "
            "settings must be the teacher's, with at most as many layers, and the teacher's layers "
            "must not share weights."
        )
    student = MaskedLanguageModel(Encoder(config), teacher.tokenizer)
    for part in ("word", "position", "norm"):
        state = getattr(teacher.encoder.embeddings, part).state_dict()
        getattr(student.encoder.embeddings, part).load_state_dict(state)
    layers = alternate(source.layers, config.layers)
    for block, layer in zip(student.encoder.blocks, layers, strict=True):
        block.load_state_dict(teacher.encoder.blocks[layer].state_dict())
    student.token_head.load_state_dict(teacher.token_head.state_dict())
    return student


def alternate(layers: int, chosen: int) -> list[int]:
    """Choose ``chosen`` of ``layers`` layers, evenly spaced from the first to the last.

    Returns:
        Numbers of the chosen layers, from 0. For 6 of 12 layers: 0, 2, 4, 7, 9, 11.
    """
    if chosen == 1:
        return [0]
    return [round(n * (layers - 1) / (chosen - 1)) for n in range(chosen)]
