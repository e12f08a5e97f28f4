"""Initialise a student model for distillation with layers of its teacher model."""

from __future__ import annotations

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.encoder import Encoder
from sbert_search.errors import ConfigError
from sbert_search.models.pretraining import MaskedLanguageModel

# Settings that student and teacher must have in common. The layout is not among them, since it only
# names the file format: a student in the format of distilbert can copy the layers of a BERT.
_SAME = (
    "vocab_size",
    "hidden_size",
    "embedding_size",
    "heads",
    "intermediate_size",
    "max_positions",
    "position_embeddings",
    "position_offset",
    "attention_terms",
    "relative_positions",
    "key_bias",
)


def make_student(teacher: MaskedLanguageModel, config: EncoderConfig) -> MaskedLanguageModel:
    """Make a student with copies of the embeddings, some blocks and the token head of its teacher.

    Segment embeddings are not copied.

    Args:
        teacher: The model to copy from.
        config: Configuration of the student's encoder, with at most as many layers as the teacher.

    Raises:
        ConfigError: Student and teacher differ in vocabulary, widths, heads, positions or
            attention; the student has more layers; or layers of the student or of the teacher
            share weights.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108), which takes every other
    layer.
    """
    source = teacher.encoder.config
    if obstacles := _obstacles(config, source):
        raise ConfigError(
            f"The student cannot start with its teacher's layers: {'; '.join(obstacles)}. Set "
            "these settings of model as in the teacher, with at most as many layers, none shared; "
            "or name another teacher."
        )
    student = MaskedLanguageModel(Encoder(config), teacher.tokenizer)
    for name, part in student.encoder.embeddings.named_children():
        if name != "token_type":
            state = teacher.encoder.embeddings.get_submodule(name).state_dict()
            part.load_state_dict(state)
    if config.relative_positions:
        student.encoder.distances.load_state_dict(teacher.encoder.distances.state_dict())
    layers = alternate(source.layers, config.layers)
    for block, layer in zip(student.encoder.blocks, layers, strict=True):
        block.load_state_dict(teacher.encoder.blocks[layer].state_dict())
    student.token_head.load_state_dict(teacher.token_head.state_dict())
    return student


def _obstacles(config: EncoderConfig, source: EncoderConfig) -> list[str]:
    """Say why a student cannot have copies of the layers of a teacher; empty if it can."""
    found = [
        f"{name} is {getattr(config, name)}, and the teacher's {getattr(source, name)}"
        for name in _SAME
        if getattr(config, name) != getattr(source, name)
    ]
    if config.layers > source.layers:
        found.append(f"layers is {config.layers}, and the teacher has {source.layers}")
    for owner, shape in (("student", config), ("teacher", source)):
        if shape.block_order != list(range(shape.layers)):
            found.append(f"layers of the {owner} share their weights")
    return found


def alternate(layers: int, chosen: int) -> list[int]:
    """Choose ``chosen`` of ``layers`` layers, evenly spaced from the first to the last.

    Returns:
        Numbers of the chosen layers, from 0. For 6 of 12 layers: 0, 2, 4, 7, 9, 11. For 1 layer: 0.
    """
    if chosen == 1:
        return [0]
    return [round(n * (layers - 1) / (chosen - 1)) for n in range(chosen)]
