from __future__ import annotations

from pathlib import Path

import pytest

from sbert_search.errors import ConfigError
from sbert_search.models.encoder.layouts import SUPPORTED, from_settings, most_positions
from sbert_search.models.heads import POOLINGS

ROBERTA = {"model_type": "roberta", "max_position_embeddings": 514}
DEBERTA = {"model_type": "deberta", "relative_attention": True, "max_position_embeddings": 64}


def test_positions_of_roberta_begin_after_the_padding_id() -> None:
    config = from_settings(ROBERTA | {"pad_token_id": 1})
    assert (config.position_offset, config.max_positions) == (2, 512)


def test_deberta_reads_its_attention_terms_from_a_list_or_a_string() -> None:
    for terms in (["c2p", "p2c"], "C2P|p2c"):
        config = from_settings(DEBERTA | {"pos_att_type": terms})
        assert config.attention_terms == ("c2c", "c2p", "p2c")
        assert config.relative_positions == 64  # -1 means: as many as positions


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (ROBERTA | {"pad_token_id": "1"}, "pad_token_id is '1'; it must be a whole number"),
        (ROBERTA | {"max_position_embeddings": 51.4}, "max_position_embeddings is 51.4; it must"),
        (DEBERTA | {"pos_att_type": 3}, r"pos_att_type is 3; it must be a list such as \['c2p'"),
        (DEBERTA | {"pos_att_type": [3]}, r"pos_att_type is \[3\]; it must be a list"),
        (
            DEBERTA | {"max_relative_positions": None, "pos_att_type": "c2p", "talking_head": True},
            "talking_head is True; the native encoder needs False",
        ),
        (ROBERTA | {"hidden_size": "768"}, "hidden_size is '768'; it must be of type int"),
        (ROBERTA | {"hidden_act": ["gelu"]}, r"activation \['gelu'\] is unknown; known: gelu"),
    ],
)
def test_a_value_that_the_encoder_cannot_use_is_named(
    keys: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_settings(keys)


@pytest.mark.parametrize("kind", [["bert"], {}, None, 7])
def test_a_type_that_is_no_text_has_no_known_limit(kind: object) -> None:
    assert most_positions({"model_type": kind}) is None


def test_a_table_recommends_models_by_languages_and_licence() -> None:
    page = (Path(__file__).parents[3] / "docs/guides/models.md").read_text("utf-8")
    table = page.partition("| model | languages | licence |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) >= 5
    assert {row[1] for row in rows} == {"English", "many"}
    assert {row[2] for row in rows} == {"Apache-2.0", "MIT"}


@pytest.mark.parametrize("page", ["models.md", "guides/models.md"])
def test_the_docs_list_what_the_code_supports(page: str) -> None:
    docs = Path(__file__).parents[3] / "docs"
    assert SUPPORTED in (docs / page).read_text("utf-8")
    if page == "models.md":
        modes = ", ".join(mode for mode in POOLINGS if mode != "sum")
        assert f"the modules Pooling ({modes}, or several), Dense and" in (docs / page).read_text()
