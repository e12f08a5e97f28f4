"""The grammar of BIO and BILOU, and the entities that tags denote."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbert_search.tag_schemes import (
    Entity,
    Scheme,
    convert,
    detect_scheme,
    entities,
    first_fault,
    may_follow,
    split_tag,
    tag_names,
    tags_of,
)

SCHEMES: tuple[Scheme, ...] = ("bio", "bilou")


@st.composite
def layouts(draw: st.DrawFn) -> tuple[list[Entity], int]:
    """Entities that do not overlap, and the length of their sequence."""
    found, position = [], 0
    for gap, width, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from("ab")), max_size=5)
    ):
        found.append(Entity(kind, position + gap, position + gap + width))
        position += gap + width
    return found, position + draw(st.integers(0, 2))


@given(layouts())
def test_tags_denote_the_entities_that_they_were_made_from(
    layout: tuple[list[Entity], int],
) -> None:
    found, length = layout
    for scheme in SCHEMES:
        tags = tags_of(found, length, scheme)
        assert first_fault(tags, scheme) is None
        assert entities(tags, scheme) == entities(tags, scheme, strict=True) == found
        for to in SCHEMES:
            assert convert(tags, scheme, to) == tags_of(found, length, to)


@given(st.data())
def test_sequences_without_fault_are_those_that_repair_leaves_alone(data: st.DataObject) -> None:
    scheme = data.draw(st.sampled_from(SCHEMES))
    tags = data.draw(st.lists(st.sampled_from(tag_names("ab", scheme)), max_size=6))
    repaired = convert(tags, scheme, scheme)
    assert first_fault(repaired, scheme) is None
    assert (first_fault(tags, scheme) is None) == (repaired == tuple(tags))
    assert set(entities(tags, scheme, strict=True)) <= set(entities(tags, scheme))


def test_pairs_of_tags_that_bilou_allows() -> None:
    allowed = {
        (before, tag)
        for before, tag in product(tag_names(["a"], "bilou"), repeat=2)
        if may_follow(before, tag, "bilou")
    }
    opened = {(b, t) for b in ("B-a", "I-a") for t in ("I-a", "L-a")}
    assert allowed == opened | {(b, t) for b in ("O", "L-a", "U-a") for t in ("O", "B-a", "U-a")}
    assert not may_follow("B-a", "L-b", "bilou")
    assert [may_follow(None, tag, "bilou") for tag in tag_names(["a"], "bilou")] == [
        *(True, True, False, False, True)
    ]
    assert [may_follow(tag, None, "bilou") for tag in tag_names(["a"], "bilou")] == [
        *(True, False, False, True, True)
    ]


def test_bio_forbids_only_an_inside_tag_that_continues_nothing() -> None:
    assert [may_follow(before, "I-a", "bio") for before in ("O", "B-a", "I-a", "B-b", None)] == [
        *(False, True, True, False, False)
    ]
    assert all(may_follow("I-a", tag, "bio") for tag in ("O", "B-a", "B-b", None))


def test_faults_and_their_repair() -> None:
    assert first_fault(["O", "I-a", "I-b"], "bio") == 1
    assert convert(["O", "I-a", "I-b"], "bio", "bio") == ("O", "B-a", "B-b")
    assert first_fault(["U-a", "B-a"], "bilou") == 1
    assert first_fault(["B-a", "O"], "bilou") == 1
    assert convert(["B-a", "O"], "bilou", "bilou") == ("U-a", "O")
    assert entities(["B-a", "O"], "bilou", strict=True) == []
    assert entities(["I-a", "I-a", "B-a"], "bio", strict=True) == [Entity("a", 2, 3)]


def test_names_detection_and_tags_of_no_scheme() -> None:
    assert tag_names(["b", "a", "b"], "bio") == ("O", "B-a", "I-a", "B-b", "I-b")
    assert (detect_scheme(["O", "B-a"]), detect_scheme(["O", "U-a"])) == ("bio", "bilou")
    assert split_tag("B-creative-work") == ("B", "creative-work")
    for tag in ("", "B", "B-", "E-a", "person", "-a", "o"):
        with pytest.raises(ValueError, match="is not O, B-TYPE"):
            split_tag(tag)


@pytest.mark.parametrize("tags", [["U-a"], ["B-a", "L-a"]])
def test_strict_bio_refuses_tags_of_bilou(tags: list[str]) -> None:
    with pytest.raises(ValueError, match=rf"'{tags[-1]}' is not a tag of BIO"):
        entities(tags, "bio", strict=True)
    assert entities(tags, "bio") == [Entity("a", 0, len(tags))]
