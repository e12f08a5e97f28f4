from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sbert_search.base.device import resolve_device
from sbert_search.base.processor import cpu
from sbert_search.errors import ConfigError
from sbert_search.lab.variants.measuring import Measuring
from sbert_search.lab.variants.recipe import (
    Piece,
    Pieces,
    Reading,
    Result,
    load_variants,
    with_data,
)
from sbert_search.lab.variants.report import VariantsReport
from sbert_search.lab.variants.run import analyze_variants
from sbert_search.train.loop.checkpoint import checkpoints
from sbert_search.train.loop.log import LOG
from tests.cli.process import command, environment
from tests.lab.variants.tiny import write_comparison

TIMED = "texts encoded per second of processor time"


def figures(report: VariantsReport) -> dict[str, dict[str, float]]:
    """The table at equal tokens, without times."""
    return {
        family: {name: each.mean for name, each in own.items() if name != TIMED}
        for family, own in report.tables["tokens"].items()
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("one_thread")
def test_a_killed_comparison_ends_with_the_same_table(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path / "data")
    options = {"data": tmp_path / "data", "seeds": 1, "device": "cpu"}
    whole = analyze_variants(recipe, tmp_path / "whole", **options)  # type: ignore[arg-type]
    assert whole.missing == ()

    killed = tmp_path / "killed"
    line = ["analyze", "variants", recipe, "--data", tmp_path / "data", "--out", killed]
    line += ["--seeds", "1", "--device", "cpu", "--quiet"]
    one_thread = environment({"OMP_NUM_THREADS": "1"})  # as in this process, which resumes
    process = subprocess.Popen(command(*line), env=one_thread)
    while process.poll() is None and not list(killed.glob("work/runs/albert-0/ckpt-????????")):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (killed / "work/pieces/bert-0-pretrain.json").exists()
    assert not (killed / "variants.json").exists()
    pretrained = (killed / "work/pieces/bert-0-pretrain.json").read_bytes()
    resumed = analyze_variants(recipe, killed, **options)  # type: ignore[arg-type]
    assert figures(resumed) == figures(whole)
    assert (killed / "work/pieces/bert-0-pretrain.json").read_bytes() == pretrained

    expected = {"held-out MLM loss", "stsb spearman, raw", "stsb spearman, NLI"}
    expected |= {"stsb spearman, NLI, STSb", "beir nDCG@10, raw", "beir nDCG@10, pairs"}
    assert set(figures(whole)["bert"]) == expected | {"reviews accuracy"}
    for budget in ("tokens", "seconds"):
        assert set(whole.tables[budget]) == {"bert", "albert"}
    record = json.loads((killed / "variants.json").read_text())
    assert record["readings"]["tokens"]["bert"]["0"]["tokens"] >= 2400
    bert, albert = (whole.training[family] for family in ("bert", "albert"))
    # ALBERT's tables of 205 tokens, 32 positions and 2 segments have 8 columns instead of 16, and a
    # matrix with bias maps them to 16. BERT's norm of embeddings has 8 more weights and biases.
    tables = (205 + 32 + 2) * 8 + 2 * 8 - (8 * 16 + 16)
    names = [name for name in bert if name.startswith("parameters of")]
    assert bert[names[0]].mean - albert[names[0]].mean == tables
    assert whole.cpus == {cpu().title: 18}  # 2 pre-trainings, 4 measures of 2 families, twice
    for file in (killed / "work/recipe.toml", killed / "variants.json"):
        assert str(tmp_path) not in file.read_text()
    assert (killed / "logs" / "albert-0.jsonl").exists()
    for family in ("bert", "albert"):  # the device is that of the option, not the best one here
        newest = checkpoints(killed / f"work/runs/{family}-0")[-1]
        assert 'device = "cpu"' in (newest / "recipe.toml").read_text()
    assert not list(killed.glob("work/runs/*/ckpt-*/state.safetensors"))
    assert not list(killed.glob("work/tuning/*"))


def test_another_recipe_over_results_is_refused(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path / "data")
    out, data = tmp_path / "out", tmp_path / "data"
    analyze_variants(recipe, out, data=data, minutes=0.0)
    result: Result = {"seconds": 1.0, "figures": {}, "readings": []}
    Pieces(out / "work/pieces").keep(Piece("pretrain", "bert", 0), result)
    recipe.write_text(recipe.read_text().replace("tokens = 2400", "tokens = 4800"))
    for plan_only in (True, False):
        with pytest.raises(ConfigError, match="results of another recipe"):
            analyze_variants(recipe, out, data=data, minutes=0.0, plan_only=plan_only)
    assert "tokens = 2400" in (out / "work/recipe.toml").read_text()


def test_a_recipe_without_results_is_replaced(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path / "data")
    out, data = tmp_path / "out", tmp_path / "data"
    analyze_variants(recipe, out, data=data, plan_only=True)
    assert not out.exists()
    right = recipe.read_text()
    recipe.write_text(right.replace("model.layers", "model.lairs"))
    with pytest.raises(ConfigError, match="lairs"):
        analyze_variants(recipe, out, data=data, minutes=0.0)
    recipe.write_text(right)
    analyze_variants(recipe, out, data=data, minutes=0.0)
    recipe.write_text(right.replace("tokens = 2400", "tokens = 4800"))
    analyze_variants(recipe, out, data=data, minutes=0.0)
    assert "tokens = 4800" in (out / "work/recipe.toml").read_text()


def test_after_a_kill_the_log_is_there_and_the_next_call_removes_the_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pretrain(self: Measuring, piece: Piece, teacher: object) -> Result:
        folder = self.run_folder(piece)
        (folder / "ckpt-00000001").mkdir(parents=True)
        (folder / "ckpt-00000001/state.safetensors").write_bytes(b"x")
        (folder / LOG).write_text("the log")
        return {"seconds": 1.0, "figures": {}, "readings": []}

    def killed(self: Measuring, piece: Piece) -> None:
        raise KeyboardInterrupt

    recipe = write_comparison(tmp_path / "data")
    out, data = tmp_path / "out", tmp_path / "data"
    monkeypatch.setattr(Measuring, "pretrain", pretrain)
    with monkeypatch.context() as during:
        during.setattr(Measuring, "slim", killed)
        with pytest.raises(KeyboardInterrupt):
            analyze_variants(recipe, out, data=data)
    assert (out / "work/pieces/bert-0-pretrain.json").exists()
    assert (out / "logs/bert-0.jsonl").read_text() == "the log"
    state = out / "work/runs/bert-0/ckpt-00000001/state.safetensors"
    assert state.exists()
    with contextlib.suppress(IndexError):  # this piece has no reading to report
        analyze_variants(recipe, out, data=data, minutes=0.0)
    assert not state.exists()


def test_without_time_nothing_starts_and_all_is_missing(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path / "data")
    report = analyze_variants(
        recipe, tmp_path / "out", data=tmp_path / "data", seeds=2, minutes=0.0
    )
    assert len(report.missing) == 2 * (2 + 2 * 2 * 4)  # seeds, pre-trainings, measures
    assert "Not finished: bert-0-pretrain" in (tmp_path / "out" / "variants.md").read_text()


def test_trainings_record_the_device_that_auto_stands_for(tmp_path: Path) -> None:
    recipe = with_data(load_variants(write_comparison(tmp_path)), tmp_path)
    automatic = Measuring(recipe, tmp_path / "work", tmp_path, "auto").device
    named = Measuring(recipe, tmp_path / "work", tmp_path, str(resolve_device())).device
    assert automatic == named  # so one resumes what the other began


def test_a_checkpoint_of_an_interruption_is_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_variants(write_comparison(tmp_path / "data"))
    measuring = Measuring(with_data(recipe, tmp_path / "data"), tmp_path, tmp_path, "cpu")
    piece = Piece("pretrain", "bert", 0)
    steps = [reading["step"] for reading in measuring.pretrain(piece, None)["readings"]]
    log = measuring.run_folder(piece) / LOG
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kept = [each for each in lines if each["kind"] != "dev" or each["step"] != steps[1]]
    log.write_text("".join(json.dumps(line) + "\n" for line in kept))  # as Ctrl-C leaves it
    readings = measuring.pretrain(piece, None)["readings"]
    assert [reading["step"] for reading in readings] == [steps[0], *steps[2:]]
    assert all(reading["figures"] for reading in readings)


def test_a_classifier_needs_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measuring = Measuring(load_variants(write_comparison(tmp_path)), tmp_path, tmp_path, "cpu")
    reading: Reading = {"step": 1, "tokens": 1, "processor_seconds": 1.0, "figures": {}}
    monkeypatch.setattr("sbert_search.lab.variants.measuring.installed", dict)
    with pytest.raises(ConfigError, match="needs heads, which is not installed"):
        measuring.measure(Piece("classify", "bert", 0, "tokens"), reading)
