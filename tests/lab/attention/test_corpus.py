import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sbert_search.errors import CorpusError, EvaluationError
from sbert_search.lab.attention.corpus import analyze_heads, head_figures_of_texts
from sbert_search.lab.attention.maps import NAMES, analyze_attention
from sbert_search.models.pretraining import MaskedLanguageModel
from tests.lab.attention.test_pruning import TEXTS
from tests.models.tiny import tiny_bi_encoder, tiny_encoder, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    tiny_bi_encoder(place / "tokens").save(place / "bi")
    encoder = tiny_encoder(initializer_range=0.3)
    MaskedLanguageModel(encoder, tiny_tokenizer(place / "tokens")).save(place / "mlm")
    pairs = [
        {"sentence1": TEXTS[n][:20], "sentence2": TEXTS[n + 1][:30], "score": n % 6}
        for n in range(16)
    ]
    (place / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return place


def test_figures_are_means_over_the_tokens_of_all_texts(folder: Path) -> None:
    texts = ["the cat sat", "a dog ran far away", "the red sun", "it slept"]
    report = analyze_heads(folder / "bi", texts)
    alone = [analyze_attention(folder / "bi", text) for text in texts]
    words = [maps.special.count(False) for maps in alone]
    assert (report.texts, report.tokens) == (4, sum(words))
    for number, figures in enumerate(report.heads):
        for name in NAMES:
            expected = np.average([getattr(m.heads[number], name) for m in alone], weights=words)
            assert getattr(figures, name) == pytest.approx(expected, abs=1e-5)


def test_a_model_without_a_head_for_masks_keeps_its_heads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert analyze_heads(folder / "bi", TEXTS).pruning is None
    assert "Or give scored pairs with --sts" in capsys.readouterr().err


def test_masked_tokens_or_pairs_judge_the_heads(folder: Path) -> None:
    masked = analyze_heads(folder / "mlm", TEXTS).pruning
    assert masked is not None
    assert masked.metric == "MLM loss"
    pairs = analyze_heads(folder / "bi", TEXTS, sts=folder / "pairs.jsonl").pruning
    assert pairs is not None
    assert pairs.metric == "STS Spearman"
    assert sorted(pairs.order) == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_the_report_is_written_and_the_same_again(folder: Path, tmp_path: Path) -> None:
    report = analyze_heads(folder / "mlm", TEXTS, most_texts=12, seed=2)
    again = analyze_heads(folder / "mlm", TEXTS, most_texts=12, seed=2)
    assert report.to_mapping() == again.to_mapping()
    (path,) = report.write(tmp_path / "out")
    record = json.loads(path.read_text())
    assert record["texts"] == 12
    assert record["pruning"]["removals"][0]["removed"] == 0
    assert len(record["heads"]) == 4


def test_long_texts_are_cut_to_bound_the_memory(tmp_path: Path) -> None:
    encoder = tiny_encoder(max_positions=300)
    tokenizer = tiny_tokenizer(tmp_path, 300)
    with torch.no_grad():
        _, tokens = head_figures_of_texts(encoder, tokenizer, ["cat " * 280, "dog"])
    assert tokens == 126 + 1


def test_bad_pairs_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b"}] * 5
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(EvaluationError, match="5 pairs have no score"):
        analyze_heads(folder / "bi", TEXTS, sts=tmp_path / "p.jsonl")
    with pytest.raises(CorpusError):
        analyze_heads(folder / "bi", TEXTS, sts=tmp_path / "absent.jsonl")
