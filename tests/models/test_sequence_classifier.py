"""Classifiers of one text or a pair: their pooling, their probe, and folders they refuse."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from sbert_search.errors import CorpusError, ModelError, WeightsError
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import SideFile
from tests.models.tiny import PAIRS, TEXTS, tiny_encoder, tiny_tokenizer
from tests.parity.folders import bare

pytestmark = pytest.mark.usefixtures("one_thread")


def classifier(folder: Path, side: SideFile | None = None) -> SequenceClassifier:
    encoder = tiny_encoder(pooler=True, initializer_range=0.3)
    return SequenceClassifier(encoder, tiny_tokenizer(folder), labels=["a", "b"], side=side).eval()


def test_mean_pooling_reads_the_mean_and_is_kept(tmp_path: Path) -> None:
    side = SideFile(pooling="mean", temperature=2.0, threshold=0.3)
    model = classifier(tmp_path / "tokens", side)
    tokens = model.pack(model.encode([(text, None) for text in TEXTS]))
    states = torch.split(model.encoder(tokens).hidden_states, list(tokens.lengths))
    means = torch.stack([each.mean(dim=0) for each in states])
    torch.testing.assert_close(model.states(tokens), means)
    model.save(tmp_path / "saved")
    again = SequenceClassifier.load(tmp_path / "saved")
    assert (again.pooling, again.temperature, again.threshold) == ("mean", 2.0, 0.3)
    torch.testing.assert_close(again(tokens), model(tokens))


@pytest.mark.parametrize("family", ["bert", "electra", "distilbert"])
def test_a_probe_is_linear_in_the_published_form(tmp_path: Path, family: str) -> None:
    folder = bare(tmp_path / "theirs", family, "ForSequenceClassification")
    model = SequenceClassifier.load(folder)
    layer = nn.Linear(16, 2)
    model.become_linear(layer)
    tokens = model.pack(model.encode([(text, None) for text in TEXTS]))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), layer(model.states(tokens)), atol=1e-4, rtol=1e-4)


def test_texts_and_pairs_are_not_mixed(tmp_path: Path) -> None:
    model = classifier(tmp_path)
    assert len(model.encode(PAIRS)) == len(PAIRS)
    with pytest.raises(CorpusError, match="1 of 2 texts have a second text"):
        model.encode([("a", None), ("a", "b")])


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"its architecture is \['BertModel'\]"):
        SequenceClassifier.load(bare(tmp_path / "model", "bert"))
    folder = bare(tmp_path / "classifier", "bert", "ForSequenceClassification")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "other"}))
    with pytest.raises(ModelError, match="problem_type is 'other', which is unknown"):
        SequenceClassifier.load(folder)
    with pytest.raises(ModelError, match="Unknown kind of classifier 'clas'"):
        SequenceClassifier(
            tiny_encoder(pooler=True),
            tiny_tokenizer(tmp_path / "tokens"),
            kind="clas",  # type: ignore[arg-type]
        )
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "model.safetensors").rename(folder / "model.safetensors")
    with pytest.raises(WeightsError, match="it is not a classifier"):
        SequenceClassifier.load(folder)
