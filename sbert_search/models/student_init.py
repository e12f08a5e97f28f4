"""A smaller model that begins with layers of the one it learns from."""

from __future__ import annotations

from sbert_search.encoder.config import EncoderConfig
from sbert_search.encoder.encoder import Encoder
from sbert_search.errors import ConfigError
from sbert_search.models.pretraining import MaskedLanguageModel

_SAME = ("vocab_size", "hidden_size", "heads", "intermediate_size", "max_positions")


def make_student(teacher: MaskedLanguageModel, config: EncoderConfig) -> MaskedLanguageModel:
    """Make a student whose embeddings, blocks and token head are copies of its teacher's.

    Args:
        teacher: Of the same width and vocabulary.
        config: Fewer layers, and no segments.

    Raises:
        ConfigError: The shapes do not allow a copy.

    Source: Sanh et al. 2019, DistilBERT, section 3 (arXiv:1910.01108): every other layer.
    """
    theirs = teacher.encoder.config
    unlike = [name for name in _SAME if getattr(config, name) != getattr(theirs, name)]
    if unlike or config.layers > theirs.layers or theirs.n_blocks != theirs.layers:
        told = ", ".join(f"{n} {getattr(config, n)} and {getattr(theirs, n)}" for n in unlike)
        raise ConfigError(
            f"The student cannot begin with its teacher's layers ({told or 'layers'}): give it the "
            "teacher's shape with fewer layers, of a teacher that shares none."
        )
    student = MaskedLanguageModel(Encoder(config), teacher.tokenizer)
    ours, given = student.encoder, teacher.encoder
    for part in ("word", "position", "norm"):
        state = getattr(given.embeddings, part).state_dict()
        getattr(ours.embeddings, part).load_state_dict(state)
    for block, source in zip(ours.blocks, alternate(theirs.layers, config.layers), strict=True):
        block.load_state_dict(given.blocks[source].state_dict())
    student.token_head.load_state_dict(teacher.token_head.state_dict())
    return student


def alternate(layers: int, chosen: int) -> list[int]:
    """Spread a number of layers evenly from the first to the last; 6 of 12: 0, 2, 4, 7, 9, 11."""
    if chosen == 1:
        return [0]
    return [round(n * (layers - 1) / (chosen - 1)) for n in range(chosen)]
