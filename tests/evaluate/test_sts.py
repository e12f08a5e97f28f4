import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sbert_search.embed.hashing import HashingEmbedder
from sbert_search.embed.protocol import TokenizedTexts, Vectors
from sbert_search.errors import ConfigError, CorpusError, EvaluationError
from sbert_search.evaluate.baselines import open_baselines
from sbert_search.evaluate.manifest import Evaluation, read_evaluation
from sbert_search.evaluate.metrics.correlation import pearson, spearman
from sbert_search.evaluate.report import draw, markdown, score_table, write_reports
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import EvalSuite, EvalTask, TaskColumns
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import Normalize
from sbert_search.search.rerankers import Reranker
from sbert_search.text.labelled.pairs import read_pairs
from sbert_search.text.labelled.records import TextPair
from tests.models.tiny import tiny_bi_encoder, tiny_cross_encoder

ROWS = [
    ("a man plays the guitar", "a man plays the guitar", 5.0),
    ("a man plays the guitar", "a woman plays the flute", 2.5),
    ("a dog runs", "the market fell on Monday", 0.0),
    ("two dogs run in the snow", "two dogs run in snow", 4.5),
]


def write_pairs(path: Path, rows: list[tuple[str, str, float]]) -> EvalTask:
    lines = [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return EvalTask(name="mini", kind="sts", path=Path(path.name))


def test_scores_are_of_the_cosines_of_the_pairs(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    embedder = HashingEmbedder()
    result = evaluate_sts(task, embedder, data=tmp_path)
    cosines = [float(np.dot(*embedder.encode([left, right]))) for left, right, _ in ROWS]
    gold = [score for *_, score in ROWS]
    assert list(result.per_item["predicted"].values()) == pytest.approx(cosines, abs=1e-6)
    assert result.scores["spearman"] == pytest.approx(spearman(cosines, gold))
    assert result.scores["pearson"] == pytest.approx(pearson(cosines, gold))
    assert result.main_score == result.scores["spearman"]
    assert result.counts["pairs"] == 4
    assert result.manifest["settings"]["correlation"] == "all"


def test_pairs_of_equal_texts_tie_and_lie_in_one_place(tmp_path: Path) -> None:
    texts = [f"{word} and some more words of it" for word in "abcdefgh"]
    rows = [(text, text, 4.0 + n / 8) for n, text in enumerate(texts)] + ROWS[2:3]
    result = evaluate_sts(write_pairs(tmp_path / "p.jsonl", rows), HashingEmbedder(), data=tmp_path)
    *equal, other = result.per_item["predicted"].values()
    assert set(equal) == {1.0}
    assert other < 1.0
    assert result.scores["alignment"] == pytest.approx(0.0)
    assert -8 < result.scores["uniformity"] < 0


class Blank(HashingEmbedder):
    """Gives a text without words a zero vector, as static models do."""

    def encode_tokens(self, tokens: TokenizedTexts) -> Vectors:
        vectors = super().encode_tokens(tokens)
        vectors[tokens.lengths == 0] = 0
        return vectors


def test_a_zero_vector_is_like_no_other(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "p.jsonl", [("!!", "cat", 1), ("a cat", "cat", 4), ("b", "b", 5)])
    result = evaluate_sts(task, Blank(), data=tmp_path)
    assert result.per_item["predicted"]["0"] == 0
    assert result.scores["spearman"] == 1


def test_a_cross_encoder_is_judged_by_its_scores(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    model = Reranker(tiny_cross_encoder(tmp_path / "tokenizer"))
    result = evaluate_sts(task, model, data=tmp_path)
    scores = model.predict([(left, right) for left, right, _ in ROWS])
    assert list(result.per_item["predicted"].values()) == pytest.approx(scores.tolist())
    assert result.manifest["settings"]["similarity"] == "score"
    assert set(result.scores) == {"spearman", "pearson"}
    several = Reranker(tiny_cross_encoder(tmp_path / "other", labels=("a", "b")))
    with pytest.raises(EvaluationError, match="2 labels; a correlation needs one score"):
        evaluate_sts(task, several, data=tmp_path)


def test_pairs_trained_on_are_left_out_in_either_order(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    seen = [TextPair("The  market fell on monday", "A dog runs")]
    result = evaluate_sts(task, HashingEmbedder(), data=tmp_path, trained_on=seen)
    assert result.counts["pairs"] == 3
    assert result.counts["pairs left out (trained on)"] == 1
    everything = read_pairs(tmp_path / "pairs.jsonl")
    with pytest.raises(
        EvaluationError, match="mini: 0 of 4 pairs are left, and a correlation needs 2"
    ):
        evaluate_sts(task, HashingEmbedder(), data=tmp_path, trained_on=everything)


def test_truncated_texts_are_counted(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    result = evaluate_sts(task, HashingEmbedder(max_len=4), data=tmp_path)
    assert result.counts["texts truncated"] == 5


def test_bad_pairs_are_named(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    (tmp_path / "pairs.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n' * 2)
    with pytest.raises(EvaluationError, match=r"2 pairs have no score, the first at .*:1; name"):
        evaluate_sts(task, HashingEmbedder(), data=tmp_path)
    named = EvalTask(
        name="mini", kind="sts", path=Path("pairs.jsonl"), columns=TaskColumns(score="gold")
    )
    with pytest.raises(CorpusError, match="gold"):
        evaluate_sts(named, HashingEmbedder(), data=tmp_path)
    constant = write_pairs(tmp_path / "same.jsonl", [(a, b, 3.0) for a, b, _ in ROWS])
    with pytest.raises(EvaluationError, match="All 4 gold scores are 3"):
        evaluate_sts(constant, HashingEmbedder(), data=tmp_path)


def test_a_record_reads_back_equal_and_a_repeat_gives_the_same_items(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    result, again = (evaluate_sts(task, HashingEmbedder(), data=tmp_path) for _ in range(2))
    report, record, picture = write_reports([result], tmp_path / "out")
    stored = read_evaluation(record)
    assert stored["per_item"] == result.per_item == again.per_item
    assert stored["scores"] == result.scores
    assert stored["manifest"]["data_sha256"].keys() == {"pairs.jsonl"}
    assert "one correlation over the pooled pairs" in " ".join(report.read_text().split())
    assert picture.read_text() == draw(stored)
    record.write_text("{}")
    with pytest.raises(EvaluationError, match="not an evaluation record of format 1"):
        read_evaluation(record)


@pytest.fixture
def result(tmp_path: Path) -> Evaluation:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    return evaluate_sts(task, HashingEmbedder(), data=tmp_path)


def test_an_absent_task_is_listed_and_takes_the_mean_away(result: Evaluation) -> None:
    whole = EvalSuite(title="All", tasks=("mini",), average=True)
    assert "| mean |" in markdown([result], whole)
    partial = EvalSuite(
        title="All", tasks=("mini", "other"), average=True, absent={"other": "held out"}
    )
    text = markdown([result], partial)
    assert "| mean |" not in text
    assert "| other | absent | held out |" in text
    assert "Tasks are absent, so no mean is given." in text


def test_a_mean_and_an_interval_are_of_one_metric(result: Evaluation) -> None:
    suite = EvalSuite(title="All", tasks=("mini", "other"), average=True)
    accuracy = replace(
        result,
        task=replace(result.task, name="other", main_metric="accuracy"),
        scores={"spearman": 0.25, "accuracy": 0.5},
        per_item={"accuracy": {"a": 0.0, "b": 1.0}},
    )
    same = replace(accuracy, task=replace(accuracy.task, name="mini"))
    columns, rows = score_table([same, accuracy], suite)
    assert columns[3:5] == ["accuracy x 100", "95 % interval"]
    assert rows[0][3:] == rows[1][3:] == ["50.00", "0.00 to 100.00", "25.00"]
    assert rows[2] == ["mean", "", "", "50.00", "", ""]
    other = replace(accuracy, task=replace(accuracy.task, main_metric="spearman"))
    _, rows = score_table([same, other], suite)
    assert [row[:1] + row[3:] for row in rows] == [
        ["mini", "50.00", "0.00 to 100.00", "25.00"],
        ["other", "50.00", "", "25.00"],
    ]


def test_other_systems_stand_beside_the_model(tmp_path: Path) -> None:
    task = write_pairs(tmp_path / "pairs.jsonl", ROWS)
    model, other = (evaluate_sts(task, HashingEmbedder(n), data=tmp_path) for n in (384, 4))
    written = write_reports([model], tmp_path / "out", beside={"[CLS] of it": [other]})
    assert tmp_path / "out" / "CLS--of-it" / "mini.json" in written
    text = written[0].read_text()
    assert f"| hashing | {100 * model.main_score:.2f} |" in text
    assert f"| [CLS] of it | {100 * other.main_score:.2f} |" in text


def test_baselines_pool_the_encoder_and_average_its_token_embeddings(tmp_path: Path) -> None:
    bi_encoder = tiny_bi_encoder(tmp_path / "tokenizer", head=[Normalize()])
    bi_encoder.save(tmp_path / "model")
    systems = open_baselines(tmp_path / "model", device="cpu")
    mean, cls, tokens = (embedder.encode(["the cat sat", ""]) for embedder in systems.values())
    packed = bi_encoder.tokenizer.encode(["the cat sat"])[0]
    states = bi_encoder.encoder(PackedTokens.from_lists(packed)).hidden_states.detach().numpy()
    assert mean[0] == pytest.approx(states.mean(axis=0), abs=1e-5)
    assert cls[0] == pytest.approx(states[0], abs=1e-5)
    table = bi_encoder.encoder.embeddings.word.weight.detach().numpy()
    assert tokens[0] == pytest.approx(table[packed[0][1:-1]].mean(axis=0), abs=1e-6)
    assert tokens[1].tolist() == [1.0] + [0.0] * 15
    assert [each.encode([]).shape for each in systems.values()] == [(0, 16)] * 3
    with pytest.raises(ConfigError, match="nowhere"):
        open_baselines(tmp_path / "model", device="nowhere")
