"""A query from the shell is answered by the exported graph, without torch."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from sbert_search.models.heads import Normalize
from tests.cli.process import Done, in_a_process, sbert_search
from tests.models.tiny import tiny_bi_encoder, tiny_static

HEAVY = {"torch", "transformers", "sentence_transformers", "faiss", "pandas", "scipy", "sklearn"}
# Modules that build, update, train, evaluate or use a GPU, and parts of libraries that a query does
# not need; the modules below them count too.
UNUSED = (
    "sbert_search.cli.options.config_file",
    "sbert_search.text.columns",
    "sbert_search.text.documents",
    "sbert_search.text.fields",
    "sbert_search.text.formats",
    "sbert_search.text.labelled",
    "sbert_search.text.sources",
    "sbert_search.text.spool",
    "sbert_search.embed.batch_autotune",
    "sbert_search.embed.engines.native",
    "sbert_search.embed.engines.export",
    "sbert_search.embed.engines.torch_engines",
    "sbert_search.embed.pipeline",
    "sbert_search.embed.processes",
    "sbert_search.evaluate",
    "sbert_search.index.dense.faiss_build",
    "sbert_search.index.dense.faiss_gpu",
    "sbert_search.index.filters",
    "sbert_search.index.building.build",
    "sbert_search.index.building.ingest",
    "sbert_search.index.building.sync",
    "sbert_search.index.upkeep",
    "sbert_search.index.storage.segment_writer",
    "sbert_search.index.storage.transaction",
    "sbert_search.index.tuning",
    "sbert_search.index.writer",
    "sbert_search.models.embedding_losses",
    "sbert_search.models.logit_losses",
    "sbert_search.evaluate.metrics",
    "sbert_search.base.machine",
    "sbert_search.search.rerankers",
    "sbert_search.text.tokens.wordpiece",
    "sbert_search.train",
    "asyncio",
    "huggingface_hub",
    "multiprocessing",
    "numpy.ma",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "sqlglot",
)
LISTING = """
import json, sys
from sbert_search.cli.main import run
code = run()
print("MODULES", json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """An index by a model that is in the cache as a graph from then on."""
    base = tmp_path_factory.mktemp("cold")
    tiny_bi_encoder(base / "tokens", head=[Normalize()]).save(base / "model")
    path = base / "my.index"
    done = sbert_search(
        "index", "build", corpus, "--out", path, "--model", base / "model", env=cache(base)
    )
    assert done.code == 0, done.err
    assert not (base / "cache/sbert-search/graphs").exists()
    first = sbert_search("search", path, "the cat sat", env=cache(base))
    assert len(first.out.splitlines()) > 3
    assert "once, so that the next searches do not load torch" in first.err
    assert [*(base / "cache/sbert-search/graphs").iterdir()] != []
    return path


def cache(base: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(base / "cache")}


def ask(
    index: Path, *options: str, query: str = "the cat sat", cached: Path | None = None
) -> tuple[Done, set[str]]:
    done = in_a_process(
        *("search", index, query, "--json", *options),
        launcher=(sys.executable, "-c", LISTING),
        env=cache(cached or index.parent),
    )
    assert done.code == 0, done.err
    line = next(line for line in done.err.splitlines() if line.startswith("MODULES"))
    return done, set(json.loads(line.removeprefix("MODULES")))


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_a_cold_search_imports_only_what_it_uses(built: Path, mode: str) -> None:
    _, modules = ask(built, "--mode", mode)
    assert not [name for name in modules if f"{name}.".startswith(tuple(f"{u}." for u in UNUSED))]


@pytest.mark.thorough
def test_a_cold_search_loads_no_torch_and_finds_the_same(built: Path) -> None:
    quick, modules = ask(built, "--verbose")
    assert {"onnxruntime", "tokenizers", "pyarrow"} <= modules
    assert not modules & HEAVY
    assert "engine onnx, fp32 on cpu" in quick.err
    native, modules = ask(built, "--engine", "native", "--precision", "fp32")
    assert "torch" in modules
    assert "onnxruntime" not in modules
    for ours, theirs in zip(quick.records, native.records, strict=True):
        assert ours.pop("score") == pytest.approx(theirs.pop("score"), abs=1e-5)
        assert ours.pop("stages").keys() == theirs.pop("stages").keys()
        assert ours == theirs


@pytest.mark.thorough
def test_words_are_searched_without_any_model(built: Path, tmp_path: Path) -> None:
    done, modules = ask(built, "--mode", "lexical", query="wheels", cached=tmp_path)
    assert not modules & {
        *HEAVY,
        "onnxruntime",
        "tokenizers",
        "bm25s",
        "sbert_search.embed.embedder",
    }
    assert [(hit["doc_id"], hit["matched_words"]) for hit in done.records] == [("mill", ["wheels"])]
    assert "Model" not in done.err


@pytest.mark.thorough
def test_a_search_notes_nothing_unless_asked(built: Path) -> None:
    done, _ = ask(built)
    assert done.err.startswith("MODULES")


@pytest.mark.thorough
def test_another_model_is_refused_once_and_before_torch_loads(
    built: Path, corpus: Path, tmp_path: Path
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "other")
    env = cache(built.parent)
    done = sbert_search(
        *("index", "build", corpus, "--out", tmp_path / "its.index"),
        *("--model", tmp_path / "other"),
        env=env,
    )
    assert done.code == 0, done.err
    first = sbert_search("search", tmp_path / "its.index", "cats", env=env)
    assert first.code == 0, first.err  # now both models are in the cache as graphs
    done = in_a_process(
        *("search", built, "cats", "--model", tmp_path / "other"),
        launcher=(sys.executable, "-c", LISTING),
        env=env,
    )
    assert done.code == 1
    assert done.err.count("is another model (") == 1
    assert "Loading torch" not in done.err
    listed = done.err.splitlines()[-1].removeprefix("MODULES")
    assert "torch" not in json.loads(listed)


def test_a_model_that_is_gone_is_reported_once(built: Path, tmp_path: Path) -> None:
    done = sbert_search(
        "search", built, "cats", "--model", tmp_path / "gone", env=cache(built.parent)
    )
    assert done.code == 1
    assert done.err.count("There is no model folder") == 1
    assert "Loading torch" not in done.err


@pytest.mark.thorough
def test_without_the_graph_torch_answers_after_one_note(built: Path, tmp_path: Path) -> None:
    done, modules = ask(built, cached=tmp_path)
    assert "torch" in modules
    assert done.err.count("Loading torch, which takes seconds, ") == 1
    assert len(done.records) == 3


@pytest.mark.thorough
def test_a_graph_that_disagrees_with_the_index_is_passed_over(built: Path, tmp_path: Path) -> None:
    shutil.copytree(built.parent / "cache", tmp_path / "cache")
    ask(built, cached=tmp_path)
    (agreed,) = (tmp_path / "cache" / "sbert-search" / "agreement").glob("*.json")
    assert float(agreed.read_text()) == pytest.approx(1, abs=1e-3)
    agreed.write_text("0.5")
    done, modules = ask(built, cached=tmp_path)
    assert "torch" in modules
    assert "cosine 0.50000 on the check texts" in done.err


@pytest.mark.thorough
def test_a_query_model_that_is_a_table_loads_no_engine(corpus: Path, tmp_path: Path) -> None:
    tiny_static(tmp_path / "full")
    path, near = tmp_path / "my.index", tiny_static(tmp_path / "near", noise=0.05)
    made = ("index", "build", corpus, "--out", path, "--model", tmp_path / "full")
    assert sbert_search(*made, env=cache(tmp_path)).code == 0
    assert sbert_search("index", "query-model", path, near, env=cache(tmp_path)).code == 0
    shutil.rmtree(tmp_path / "full")
    done, modules = ask(path, "--query-model", "fast", "--mode", "dense")
    assert len(done.records) == 3
    assert not modules & {*HEAVY, "onnxruntime", "sbert_search.models.encoder.layouts"}
    assert not [name for name in modules if f"{name}.".startswith(tuple(f"{u}." for u in UNUSED))]
