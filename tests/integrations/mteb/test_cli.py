"""`eval mteb` on a BEIR folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sbert_search.cli.main import run
from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.integrations.mteb import SbertSearchEncoder, SbertSearchModel
from sbert_search.search.options import SearchOptions
from sbert_search.search.rerankers import BestWindow, Reranker
from tests.models.tiny import tiny_cross_encoder

pytestmark = pytest.mark.filterwarnings("ignore")


def _folder(base: Path) -> Path:
    (base / "qrels").mkdir(parents=True)
    texts = {"a": "tides of the sea", "b": "dunes of sand", "c": "yeast and dough"}
    rows = [json.dumps({"_id": n, "title": "", "text": text}) for n, text in texts.items()]
    (base / "corpus.jsonl").write_text("\n".join(rows))
    (base / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "sea tides"}))
    (base / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    return base


@pytest.mark.parametrize("option", ["--mode=hybrid", "--encoder"])
def test_a_folder_is_scored(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _folder(tmp_path / "notes")
    command = ["eval", "mteb", str(folder), "--model", "hashing", option]
    assert run([*command, "--json", "--out", str(tmp_path / "out")]) == 0
    row = json.loads(capsys.readouterr().out)
    expected = {"task": "notes", "split": "test", "subset": "default", "metric": "ndcg_at_10"}
    assert row == {**expected, "score": 1.0}
    assert [*(tmp_path / "out").rglob("notes.json")]
    assert run(command) == 0
    assert "1.0000" in capsys.readouterr().out
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tb\t1\n")
    assert run([*command, "--json", "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["score"] < 1  # not the result of the former files


def test_other_settings_have_another_revision() -> None:
    plain = SbertSearchModel("hashing").mteb_model_meta
    fuzzy = SbertSearchModel("hashing", options=SearchOptions(mode="lexical", fuzzy=1))
    depth = SbertSearchModel("hashing", options=SearchOptions(mode="lexical", fuzzy=2))
    revisions = {each.revision for each in (plain, fuzzy.mteb_model_meta, depth.mteb_model_meta)}
    assert len(revisions) == 3


def test_the_revision_depends_on_the_settings_of_all_models(tmp_path: Path) -> None:
    encoders = [SbertSearchEncoder(HashingEmbedder(dim)) for dim in (16, 32)]
    assert len({encoder.mteb_model_meta.revision for encoder in encoders}) == 2
    paths = [tmp_path / name for name in ("a", "b")]
    for seed, path in enumerate(paths):
        torch.manual_seed(seed)
        tiny_cross_encoder(path / "tokens").save(path / "model")
    scorers = [Reranker(path / "model", device="cpu") for path in paths]
    best = [BestWindow(scorers[0]), BestWindow(scorers[1]), BestWindow(scorers[0], most=2)]
    rerankers: list[Reranker | BestWindow] = [*scorers, *best]
    models = [SbertSearchModel("hashing", reranker=each) for each in rerankers]
    assert len({model.mteb_model_meta.revision for model in models}) == 5


def test_an_unknown_task_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "mteb", "NFCorpusX", "--model", "hashing"]) == 1
    assert "'NFCorpusX' is neither a task of MTEB nor a BEIR folder" in capsys.readouterr().err
