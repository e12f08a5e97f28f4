import json
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.embedder import Embedder
from sbert_search.errors import EvaluationError, ModelError
from sbert_search.evaluate.metrics.isotropy import UnitSums, uniformity
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import find_task
from sbert_search.lab.anisotropy.analyze import analyze_anisotropy
from sbert_search.lab.anisotropy.remedies import MappedEmbedder
from tests.models.tiny import WORDS, tiny_bi_encoder

TEXTS = [" ".join(np.random.default_rng(n).choice(WORDS, 4 + n % 5)) for n in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(folder / "tokens").save(folder / "bi")
    return folder / "bi"


@pytest.fixture(scope="module")
def pairs(model: Path) -> Path:
    path = model.parent / "pairs.jsonl"
    rows = [
        {"sentence1": TEXTS[n], "sentence2": TEXTS[n + 20 + n % 3], "score": n % 6}
        for n in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def beir(model: Path) -> Path:
    folder = model.parent / "mini"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "text": text} for n, text in enumerate(TEXTS[:8])]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "the red sun"}\n')
    (folder / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq\td3\t1\n")
    return folder


def test_scores_are_those_of_eval_with_the_remedy(model: Path, pairs: Path, beir: Path) -> None:
    report = analyze_anisotropy(model, TEXTS, sts=[pairs], retrieval=[beir], split="dev")
    assert report.main_metrics == {"pairs": "spearman", "mini": "nDCG@10"}
    assert [each.remedy for each in report.sentences] == ["none", *report.remedies]
    plain = Embedder(model, precision="fp32")
    task = find_task("sts", str(pairs))
    for each in report.sentences:
        fitted = report.remedies.get(each.remedy)
        embedder = MappedEmbedder(plain, "", fitted) if fitted else plain
        expected = evaluate_sts(task, embedder, data=Path()).scores
        assert each.scores["pairs"] == pytest.approx(expected, abs=1e-6)
        assert 0 <= each.scores["mini"]["nDCG@10"] <= 1
    assert sorted(report.data_sha256)[0].endswith("corpus.jsonl")


def test_remedies_are_fitted_on_one_half_and_measured_on_the_other(model: Path) -> None:
    report = analyze_anisotropy(model, TEXTS, seed=5)
    assert (report.texts, report.fitted_on, report.seed) == (60, 30, 5)
    none, *others = report.sentences
    assert none.cosine > 0.5  # a random model puts all texts in one cone
    assert all(abs(each.cosine) < 0.1 for each in others)
    vectors = Embedder(model, precision="fp32").encode(TEXTS).astype(np.float64)
    assert none.cosine == pytest.approx(UnitSums.of(vectors).mean_cosine(), abs=0.05)
    fitted_on_all = report.remedies["whitening"](vectors)
    assert not np.allclose(np.cov(fitted_on_all, rowvar=False), np.eye(fitted_on_all.shape[1]))


def test_the_same_seed_gives_the_same_report(model: Path) -> None:
    first, again, other = (
        analyze_anisotropy(model, TEXTS, seed=seed, most_texts=40).to_mapping()
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first["sentences"] != other["sentences"]


def test_uniformity_is_of_the_vectors_that_were_held_out(model: Path) -> None:
    report = analyze_anisotropy(model, TEXTS)
    assert uniformity(np.eye(3)) < report.sentences[0].uniformity < 0


def test_options_reach_the_remedies(model: Path) -> None:
    report = analyze_anisotropy(model, TEXTS, whitened_dim=3, directions=5)
    assert [each.dim for each in report.sentences] == [16, 16, 16, 3]
    assert np.linalg.matrix_rank(report.remedies["all-but-the-top"].weight) == 11


def test_few_texts_are_noted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analyze_anisotropy(model, TEXTS[:20])
    assert "fitted on 10 texts, fewer than the vectors have dimensions" in capsys.readouterr().err


def test_errors_come_before_the_work(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="absent is not a file"):
        analyze_anisotropy(tmp_path / "no-model", TEXTS, sts=["absent"])
    with pytest.raises(ModelError, match="no-model"):
        analyze_anisotropy(tmp_path / "no-model", TEXTS)
    with pytest.raises(EvaluationError, match="at least 10 different texts"):
        analyze_anisotropy(model, TEXTS[:9])
