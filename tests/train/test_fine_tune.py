"""Fine-tuning on pairs: what is held out, what is measured, and the same call again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sbert_search import FineTuned, fine_tune
from sbert_search.cli.main import cli
from sbert_search.errors import CheckpointError, ConfigError, CorpusError
from sbert_search.evaluate import evaluate
from sbert_search.text.labelled.records import Triplet
from sbert_search.train import fine_tune as module
from tests.models.tiny import tiny_bi_encoder

WORDS = [
    "mill",
    "bread",
    "moon",
    "tide",
    "bee",
    "dance",
    "river",
    "wheel",
    "stone",
    "grain",
    "oven",
]
ROWS = [
    {"query": f"{a} {b}", "positive": f"the {b} of {a}"} for a in WORDS for b in WORDS if a != b
]
FAST = ("device=cpu", "precision=fp32", "mining.negatives=0")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "start")
    return tmp_path / "start"


def tune(model: Path, out: Path, **changes: object) -> FineTuned:
    rows, settings = changes.pop("rows", ROWS), {"epochs": 3, "lr": 1e-2, **changes}
    return fine_tune(rows, out, model=model, settings=FAST, **settings)  # type: ignore[arg-type]


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_gain_is_measured_on_queries_that_are_held_out(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    tuned = tune(model, out)
    held, train = (read(out / "pairs" / f"{name}.jsonl") for name in ("held-out", "train"))
    assert len(held) == round(0.2 * len(ROWS))
    assert {r["query"] for r in held}.isdisjoint(r["query"] for r in train)
    assert sorted(map(str, [*held, *train])) == sorted(map(str, ROWS))
    assert tuned.before is not None
    assert tuned.after is not None
    assert tuned.change is not None
    assert tuned.before.per_item == evaluate(str(model), held, mode="dense").per_item
    again = evaluate(str(tuned.model), out / "pairs" / "held-out.jsonl", mode="dense")
    assert tuned.after.per_item == again.per_item
    assert tuned.change.second == tuned.after.main_score > tuned.before.main_score
    assert str(tuned) == (
        f"before {tuned.before.main_score:.2f}, after {tuned.after.main_score:.2f} "
        f"(p = {tuned.change.corrected:.4f}, {len(held)} held-out queries)"
    )


def test_the_same_call_again_returns_the_model(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = tune(model, out, epochs=1)
    files = {path: path.read_bytes() for path in out.rglob("*.safetensors")}
    second = tune(model, out, epochs=1)
    assert {path: path.read_bytes() for path in files} == files
    assert str(second) == str(first)
    with pytest.raises(
        CheckpointError, match=r"with other settings: optim\.lr was 0\.01, is 0\.02"
    ):
        tune(model, out, epochs=1, lr=0.02)
    with pytest.raises(CheckpointError, match="holds a run on other pairs"):
        tune(model, out, epochs=1, rows=ROWS[1:])


def test_few_queries_are_all_trained_on(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = tune(model, tmp_path / "run", rows=ROWS[:40], epochs=1)
    assert len(read(tmp_path / "run" / "pairs" / "train.jsonl")) == 40
    assert (tuned.before, tuned.after, tuned.change) == (None, None, None)
    assert "nothing was measured" in str(tuned)
    assert "blank" not in capsys.readouterr().err
    rows = [{**row, "positive": row["positive"].replace(" ", "-")} for row in ROWS[:40]]
    tune(model, tmp_path / "ids", rows=rows, epochs=1)
    assert "No positive has a blank, such as '" in capsys.readouterr().err


def test_columns_of_other_names_are_named_by_settings(model: Path, tmp_path: Path) -> None:
    rows = [{"Frage": row["query"], "Antwort": row["positive"]} for row in ROWS]
    names = ("data.columns.text1=Frage", "data.columns.text2=Antwort")
    plain, named = (
        fine_tune(data, tmp_path / out, model=model, epochs=1, settings=(*FAST, *settings))
        for data, out, settings in ((ROWS, "plain", ()), (rows, "named", names))
    )
    assert str(named) == str(plain)
    with pytest.raises(ConfigError, match=r"data\.columns\.quatsch"):
        fine_tune(rows, tmp_path / "x", model=model, settings=["data.columns.quatsch=a"])


def test_all_pairs_of_a_query_are_on_one_side(model: Path, tmp_path: Path) -> None:
    rows = [{"query": row["query"].title(), "positive": "other " + row["positive"]} for row in ROWS]
    tune(model, tmp_path / "run", rows=[*ROWS, *rows], epochs=1)
    held, train = (
        {str(row["query"]).lower() for row in read(tmp_path / "run" / "pairs" / f"{name}.jsonl")}
        for name in ("held-out", "train")
    )
    assert held.isdisjoint(train)


def test_negatives_are_used_if_every_row_has_one(model: Path, tmp_path: Path) -> None:
    rows = [{**row, "negative": f"no {row['query']}"} for row in ROWS]
    tune(model, tmp_path / "run", rows=rows, epochs=1)
    recipe = next((tmp_path / "run").glob("ckpt-*/recipe.toml")).read_text()
    assert 'form = "triplets"' in recipe
    with pytest.raises(CorpusError, match="no negative, but"):
        tune(model, tmp_path / "other", rows=[*rows[:-1], ROWS[-1]], epochs=1)


@pytest.mark.parametrize(("batch_size", "steps"), [(None, 49), (128, 13)])
def test_few_pairs_are_seen_at_most_ten_times(batch_size: int | None, steps: int) -> None:
    pairs = [Triplet(str(n), "text", (), "") for n in range(156)]
    found = module._defaults(pairs, Path("a.jsonl"), batch_size, has_budget=False)
    assert f"budget.steps={steps}" in found


def test_a_wrong_share_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"held_out is 1; it must be"):
        tune(model, tmp_path / "run", held_out=1)


def test_the_command_takes_a_file_of_pairs_in_place_of_a_recipe(
    model: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "pairs.csv", tmp_path / "run"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["query", "positive"])
        writer.writeheader()
        writer.writerows(ROWS)
    command = ["train", "bi-encoder", str(path), "--model", str(model), "--out", str(out)]
    command += ["--epochs", "1", "--batch-size", "16", "--lr", "1e-2", "--quiet"]
    command += [word for setting in FAST for word in ("--set", setting)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    *_, measured, hint = done.stdout.splitlines()
    assert measured.startswith("nDCG@10: before 0.")
    assert measured.endswith("22 held-out queries)")
    assert hint.endswith(f"--model {out}/model")
    recipe = next(out.glob("ckpt-*/recipe.toml")).read_text()
    assert "lr = 0.01" in recipe
    assert "size = 16" in recipe
    again = CliRunner().invoke(cli, [*command, "--json"])
    assert again.exit_code == 0, again.output
    told = json.loads(again.stdout)
    assert told["held_out_queries"] == 22
    assert f"before {told['before']:.2f}, after {told['after']:.2f} " in measured
