"""Draw triplets of sentences from the sections of documents."""

from __future__ import annotations

from collections.abc import Iterator

from sbert_search.base.seed import generator
from sbert_search.text.tokens.sentences import split_sections

_MIN_WORDS = 5  # per sentence


def section_triplets(text: str, number: int, count: int) -> Iterator[tuple[str, str, str]]:
    """Draw triplets: two sentences of one section and one of another section.

    The text before the first heading is about the whole document, so it is not used. Sentences of
    fewer than five words are not used either.

    Args:
        text: A document with headings.
        number: Number of the document, the seed of the draws.
        count: Number of triplets to draw.

    Yields:
        Anchor, positive and negative. A document without two sections that have sentences, or
        without a section of two sentences, gives nothing.

    Source: Ein Dor et al. 2018, Learning Thematic Similarity Metric from Article Sections Using
    Triplet Networks, section 3.
    """
    long = [
        [sentence for sentence in section.sentences if len(sentence.split()) >= _MIN_WORDS]
        for section in split_sections(text)
        if section.heading
    ]
    sections = [sentences for sentences in long if sentences]
    with_pair = [index for index, sentences in enumerate(sections) if len(sentences) > 1]
    if not with_pair or len(sections) < 2:
        return
    draw = generator(0, "sample", number)
    for _ in range(count):
        own = int(draw.choice(with_pair))
        other = int(draw.choice([index for index in range(len(sections)) if index != own]))
        anchor, positive = draw.choice(sections[own], 2, replace=False).tolist()
        yield anchor, positive, str(draw.choice(sections[other]))
