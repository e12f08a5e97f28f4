import json
from pathlib import Path

import pytest

from sbert_search.errors import ModelError
from sbert_search.lab.inputs import open_folder
from tests.models.tiny import tiny_bi_encoder


def test_a_folder_is_opened_by_its_path(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    folder, name = open_folder(tmp_path / "model")
    assert folder.path == tmp_path / "model"
    assert name == str(tmp_path / "model")


def test_an_architecture_of_others_is_refused_by_name(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "nomic_bert"}))
    with pytest.raises(ModelError, match=r"nomic_bert.*name a model of the architecture BERT"):
        open_folder(tmp_path / "model")
