"""The state in which opening leaves the process of a server."""

from __future__ import annotations

import random
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from sbert_search.embed.arguments import EmbedderOptions
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import ConfigError
from sbert_search.index.index import Index
from sbert_search.serve.access import AccessTokens
from sbert_search.serve.problems import Problem
from sbert_search.serve.state import ServeSettings, open_served
from tests.models.tiny import (
    TEXTS,
    WORDS,
    tiny_bi_encoder,
    tiny_cross_encoder,
    tiny_static,
)

FP32 = EmbedderOptions(device="cpu", precision="fp32")


def test_opening_models_leaves_no_idle_threads_of_torch() -> None:
    """Idle threads of the team of this thread would slow the team of a model's thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    torch.zeros(1_000_000).add_(1)
    waiting = _native_threads()
    settings = ServeSettings(indexes={}, models=["hashing"], tokens=AccessTokens({}))
    served = open_served(settings)
    try:
        until = time.monotonic() + 20
        while _native_threads() > waiting - 2:
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        torch.set_num_threads(before)
        for one in served.models:
            one.queue.close()


def test_a_reranker_with_several_labels_is_refused(tmp_path: Path) -> None:
    labels = ("entailment", "neutral", "contradiction")
    tiny_cross_encoder(tmp_path / "tokens", labels=labels).save(tmp_path / "nli")
    settings = ServeSettings(
        indexes={}, rerankers=[str(tmp_path / "nli")], tokens=AccessTokens({}), options=FP32
    )
    with pytest.raises(ConfigError, match=r"nli has 3 labels, so no single score"):
        open_served(settings)


def test_a_reranker_beside_the_engine_onnx_is_computed_by_torch(tmp_path: Path) -> None:
    tiny_cross_encoder(tmp_path / "tokens").save(tmp_path / "model")
    settings = ServeSettings(
        indexes={},
        rerankers=[str(tmp_path / "model")],
        tokens=AccessTokens({}),
        options={**FP32, "engine": "onnx"},
    )
    (served,) = open_served(settings).rerankers.values()
    try:
        assert served.reranker.identity.engine == "native"
    finally:
        served.queue.close()


def test_prompts_are_for_the_models_that_no_index_names(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "model")
    model = str(tmp_path / "model")
    options: EmbedderOptions = {**FP32, "prompts": {"query": "a "}}
    Index.from_texts(TEXTS[:2], model=model, out=tmp_path / "i", **options)
    settings = ServeSettings(
        indexes={"i": tmp_path / "i"},
        models=[model],
        prompts={"query": "red "},
        tokens=AccessTokens({}),
        options=FP32,
        quick=False,
    )
    served = open_served(settings)
    try:
        prompts = [one.identity.prompts for one in served.embedders.values()]
        assert prompts == [{"query": "a "}, {"query": "red "}]
    finally:
        for one in served.models:
            one.queue.close()


def test_models_of_the_same_name_are_all_served(tmp_path: Path) -> None:
    models, rerankers = tmp_path / "models", tmp_path / "rerankers"
    for folder, pooling in (("a", "cls"), ("b", "mean")):
        tiny_bi_encoder(models / folder / "tokens", pooling=[pooling]).save(
            models / folder / "model"
        )
        tiny_cross_encoder(rerankers / folder / "tokens").save(rerankers / folder / "model")
    settings = ServeSettings(
        indexes={},
        models=[str(models / folder / "model") for folder in ("a", "b", "b", "a")],
        rerankers=[str(rerankers / folder / "model") for folder in ("a", "b")],
        tokens=AccessTokens({}),
        options=FP32,
    )
    served = open_served(settings)
    try:
        assert [*served.rerankers] == ["model", "model-2"]
        assert [*served.embedders] == ["model", "model-2"]
    finally:
        for one in served.models:
            one.queue.close()


def test_the_model_of_an_index_is_served_once_under_each_of_its_names(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "mine")
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    model, copy = str(tmp_path / "mine"), str(tmp_path / "copy")
    Index.build([{"_id": "a", "text": TEXTS[0]}], out=tmp_path / "i", model=model, **FP32)
    settings = ServeSettings(
        indexes={"i": tmp_path / "i"},
        models=[model, copy],
        tokens=AccessTokens({}),
        options=FP32,
    )
    served = open_served(settings)
    try:
        assert [*served.embedders] == ["mine", "copy"]
    finally:
        for one in served.models:
            one.queue.close()
        served.indexes["i"].close()


def _native_threads() -> int:
    """Count the threads of this process that Python did not start."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()


@pytest.mark.parametrize("origin", ["*", "a.org", "https://a.org/page", "https://"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    settings = ServeSettings(
        indexes={}, models=["hashing"], tokens=AccessTokens({}), origins=[origin]
    )
    with pytest.raises(ConfigError, match="is no origin of a web page; write it as https://"):
        open_served(settings)


@pytest.mark.parametrize("address", ["*", "proxy.example", "10.0.0.5/8", ""])
def test_a_proxy_without_an_address_is_refused(address: str) -> None:
    settings = ServeSettings(
        indexes={}, models=["hashing"], tokens=AccessTokens({}), proxies=[address]
    )
    with pytest.raises(ConfigError, match=r"is no address or network of a proxy: .*10\.0\.0\.0/8"):
        open_served(settings)


def test_an_origin_is_read_as_browsers_send_it_and_the_own_host_is_known() -> None:
    settings = ServeSettings(
        indexes={},
        models=["hashing"],
        tokens=AccessTokens({}),
        origins=["https://A.org/", "https://b.org:443", "http://c.org:80/", "http://d.org:443"],
        host="127.0.1.1",
    )
    served = open_served(settings)
    expected = ["https://a.org", "https://b.org", "http://c.org", "http://d.org:443"]
    assert list(served.origins) == expected
    assert "127.0.1.1" in served.hosts


def test_a_query_model_embeds_texts_only_where_a_request_names_it(tmp_path: Path) -> None:
    texts = [" ".join(random.Random(n).choices(WORDS, k=6)) for n in range(20)]
    full, near = tiny_static(tmp_path / "full"), tiny_static(tmp_path / "near", noise=0.05)
    given, built = tmp_path / "given", tmp_path / "built"
    Index.from_texts(texts, vectors=Embedder(full).encode(texts), out=given)
    Index.from_texts(texts, model=str(full), out=built)
    for path in (given, built):
        Index.open(path).add_query_model(near)
    of_both = {"given": given, "built": built}
    for indexes, models, first in (
        (of_both, (), "full"),
        ({"given": given}, (str(full),), "full"),
        ({"given": given}, (str(near),), "near"),
        ({"given": given}, (), None),
    ):
        settings = ServeSettings(
            indexes=indexes, models=models, query_model="fast", tokens=AccessTokens({})
        )
        served = open_served(settings)
        try:
            assert served.embedder("near").name == "near"
            assert served.models[0].name == (first or "near")
            if first is not None:
                assert served.embedder("").name == served.embedder("other").name == first
                continue
            with pytest.raises(Problem, match="has query models only: near"):
                served.embedder("")
        finally:
            for one in served.models:
                one.queue.close()
