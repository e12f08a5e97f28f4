"""Triplets of sentences from the sections of documents."""

from __future__ import annotations

from collections.abc import Iterator

from sbert_search.runtime.seed import generator
from sbert_search.tokens.sections import split_sections

_MIN_WORDS = 5  # of a sentence


def section_triplets(text: str, number: int, count: int) -> Iterator[tuple[str, str, str]]:
    """Draw two sentences of one section and one of another, several times.

    What stands before the first heading tells of the whole document, so it is left out; so are
    sentences of fewer than five words.

    Args:
        text: A document with headings.
        number: Of the document; decides what is drawn.
        count: Triplets wanted.

    Yields:
        Anchor, positive, negative; nothing from a document without two sections.

    Source: Ein Dor et al. 2018, Learning Thematic Similarity Metric from Article Sections Using
    Triplet Networks, section 3.
    """
    long = [
        [sentence for sentence in section.sentences if len(sentence.split()) >= _MIN_WORDS]
        for section in split_sections(text)
        if section.heading
    ]
    sections = [sentences for sentences in long if sentences]
    rich = [place for place, sentences in enumerate(sections) if len(sentences) > 1]
    if not rich or len(sections) < 2:
        return
    draw = generator(0, "sample", number)
    for _ in range(count):
        own = int(draw.choice(rich))
        other = int(draw.choice([place for place in range(len(sections)) if place != own]))
        anchor, positive = draw.choice(sections[own], 2, replace=False).tolist()
        yield anchor, positive, str(draw.choice(sections[other]))
