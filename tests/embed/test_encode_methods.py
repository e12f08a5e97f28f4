"""`encode` takes what ``SentenceTransformer.encode`` takes, with equal results, or says why not."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from sbert_search.embed.arguments import AnyEncodeOptions
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.vectors import VectorPrecision
from sbert_search.errors import ConfigError
from sbert_search.models.heads import Normalize
from tests.models.tiny import TEXTS, tiny_bi_encoder

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = [f"{text} {word}" for text in TEXTS for word in ("the cat", "a dog", "far", "sat.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("model")
    prompts = {"query": "cat ", "way": "far away "}
    tiny_bi_encoder(base / "tokens", head=[Normalize()], prompts=prompts).save(base / "saved")
    return base / "saved"


@pytest.fixture(scope="module")
def library(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> Embedder:
    return Embedder(folder, device="cpu", precision="fp32")


NOT_OFFERED = {"device", "pool", "chunk_size", "output_value"}  # they could have no effect


def test_every_other_argument_of_the_library_is_known() -> None:
    theirs = set(inspect.signature(SentenceTransformer.encode).parameters)
    assert theirs >= NOT_OFFERED
    known = theirs - {"self", "inputs", "kwargs"} - NOT_OFFERED
    assert set(AnyEncodeOptions.__annotations__) == known


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prompt_name": "way"},
        {"prompt": "a dog "},
        {"prompt": "a dog ", "prompt_name": "way"},
        {"batch_size": 2},
        {"truncate_dim": 5},
        {"truncate_dim": 5, "normalize_embeddings": True},
        {"convert_to_tensor": True},
        {"convert_to_tensor": True, "convert_to_numpy": False, "truncate_dim": 3},
        {"convert_to_numpy": False},
        {"show_progress_bar": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("texts", [MANY, MANY[0]], ids=["several", "one"])
def test_results_are_those_of_the_library(
    library: SentenceTransformer, embedder: Embedder, options: dict[str, Any], texts: Any
) -> None:
    for name in ("encode", "encode_query", "encode_document"):
        ours = getattr(embedder, name)(texts, **options)
        theirs = getattr(library, name)(texts, **options)
        assert type(ours) is type(theirs)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
            np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("precision", get_args(VectorPrecision))
@pytest.mark.parametrize("more", [{}, {"convert_to_tensor": True}, {"truncate_dim": 11}], ids=str)
def test_quantised_vectors_equal_those_of_the_library(
    library: SentenceTransformer, precision: Any, more: dict[str, Any]
) -> None:
    """The vectors are computed by the library in both, so that no rounding differs."""
    ours = Embedder(library).encode(MANY, precision=precision, **more)
    theirs = library.encode(MANY, precision=precision, **more)
    assert (type(ours), ours.dtype) == (type(theirs), theirs.dtype)
    if precision == "float32":
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    elif precision in ("binary", "ubinary"):
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert np.abs(np.asarray(ours, int) - np.asarray(theirs, int)).max() <= 1


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_bits_of_one_text_are_a_vector(embedder: Embedder, precision: Any) -> None:
    one = embedder.encode(TEXTS[0], precision=precision)
    assert (one == embedder.encode(TEXTS[:1], precision=precision)[0]).all()


def test_without_texts_there_is_an_empty_matrix(embedder: Embedder) -> None:
    assert embedder.encode([]).shape == (0, embedder.dim)
    assert embedder.encode([], precision="int8").dtype == np.int8
    assert embedder.encode([], precision="ubinary").shape == (0, -(-embedder.dim // 8))
    assert embedder.encode([], convert_to_tensor=True).shape == torch.Size([0, embedder.dim])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int4"}, "Unknown precision 'int4'; did you mean 'int8'"),
        ({"precision": "int8"}, "precision 'int8' needs at least two texts in a call"),
        ({"prompt": 5}, "prompt is 5; it must be a text"),
        ({"prompt": b"x"}, "prompt is b'x'; it must be a text"),
        ({"batch_size": True}, "batch_size is True; pass an integer"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": "2"}, "batch_size is '2'; pass an integer"),
        ({"batch_size": 2.5}, "batch_size is 2.5; pass an integer"),
    ],
    ids=str,
)
def test_what_is_not_offered_is_refused(
    embedder: Embedder, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        embedder.encode(["one text"], **options)


def test_an_unknown_argument_is_a_type_error(embedder: Embedder) -> None:
    wrong: Any = {"normalise_embeddings": True}
    with pytest.raises(TypeError, match="did you mean 'normalize_embeddings'"):
        embedder.encode("one text", **wrong)
    for name in NOT_OFFERED:
        left_out: Any = {name: None}
        with pytest.raises(TypeError, match=f"Unknown argument of encode '{name}'"):
            embedder.encode("one text", **left_out)
