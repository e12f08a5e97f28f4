"""From raw text to filled holes, each step a command."""

from __future__ import annotations

from pathlib import Path

from sbert_search.train.recipe import shipped_recipes
from tests.cli.process import sbert_search
from tests.train.words import write_texts, write_vocabulary

SMALL = "layers = 1, hidden_size = 16, heads = 2, intermediate_size = 16, max_positions = 32"


def test_text_to_a_model_that_fills_holes(tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "texts.jsonl", 40, sentences=2, words=8)
    settings = {
        "tokenizer": write_vocabulary(tmp_path / "vocabulary"),
        "data.train": texts,
        "model": f"{{{SMALL}}}",
        "segments.kind": "document-sentences",
        "segments.max_len": 24,
        "budget.steps": 3,
    }
    chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    out = tmp_path / "run"
    done = sbert_search("pretrain", "bert", *chosen, "--device", "cpu", "--out", out, "--json")
    assert done.code == 0, done.err
    (told,) = done.records
    assert told["steps"] == 3
    assert {"mlm", "mlm_accuracy", "perplexity"} == told["figures"].keys()
    model = Path(told["model"])
    assert model == out / "model"
    kept = Path(told["best"]) / "model"
    copied = {path.relative_to(model): path.read_bytes() for path in model.rglob("*.*")}
    assert copied == {path.relative_to(kept): path.read_bytes() for path in kept.rglob("*.*")}
    assert Path("model.safetensors") in copied

    filled = sbert_search("fill-mask", model, "w1 [MASK] w3", "-k", 2, "--json")
    assert [word["rank"] for word in filled.records] == [1, 2]
    assert filled.records[0]["text"].startswith("w1 w")

    measured = sbert_search("eval", "mlm", texts, "--model", model, "--pseudo", 1, "--json")
    (figures,) = measured.records
    assert figures["masked"] > 0
    assert figures["pseudo_tokens"] == 24  # three sentences of eight words fit
    assert figures["unigram_entropy"] > 4


def test_help_lists_the_recipes_and_a_wrong_one_is_named() -> None:
    shown = " ".join(sbert_search("pretrain", "--help").out.split())
    assert all(name in shown for name in shipped_recipes("pretrain"))
    done = sbert_search("pretrain", "bertt")
    assert done.code == 2
    assert "Unknown recipe 'bertt'; did you mean 'bert'?" in done.err
