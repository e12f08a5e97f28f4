"""What the project must do, row by row: each capability works, by commands and public names alone.

Modules may move and merge: these tests then need no change. Only what a user calls, reads or types
is used here, and each test asserts a result. The rows of wings are in `tests/WING/test_mission.py`.
`tests/world.py` trains models once, for the tests that need them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from transformers import AutoConfig, AutoModel, AutoTokenizer

import sbert_search
from sbert_search import (
    ConfigError,
    Document,
    Embedder,
    Fusion,
    Index,
    IndexSpec,
    ModelMismatch,
    PretrainRecipe,
    Reranker,
    SearchEngine,
    load_recipe,
)
from tests.cli.process import ROOT, told
from tests.cli.process import sbert_search as run
from tests.parity.folders import bare
from tests.serve.live import Live, live_server
from tests.world import EXACT, World, ids

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["The comet finds the moon.", "A baker!", "", "Ünknown wörds: 12,000 x-rays?", "germ " * 80]
FAMILIES = ("bert", "roberta", "albert", "electra", "deberta", "distilbert")


@pytest.fixture(scope="module")
def index(world: World) -> Index:
    """All documents, embedded by hashed words."""
    return world.index()


# --- Tokenizer and input (rows 1 to 4) ---------------------------------------------------------


def test_wordpiece_merges_by_likelihood_and_not_by_count(tmp_path: Path) -> None:
    words = ["ab"] * 30 + ["ax", "ay", "az", "cb", "db", "eb"] * 20 + ["qu"] * 25
    (tmp_path / "words.txt").write_text("\n".join(words))
    first = {}
    for algorithm in ("wordpiece", "bpe"):
        line = ("tokenizer", "train", tmp_path / "words.txt", "--algorithm", algorithm)
        told(*line, "--vocab-size", 26, "--out", tmp_path / algorithm)
        pieces = (tmp_path / algorithm / "vocab.txt").read_text().split()
        first[algorithm] = next(piece for piece in pieces if re.fullmatch("[a-z]{2}", piece))
    # ab: 30 ln(30 N / (90 * 90)) < qu: 25 ln(25 N / (25 * 25)), though 30 > 25
    assert first == {"wordpiece": "qu", "bpe": "ab"}


def test_a_vocabulary_is_extended_and_the_model_with_it(world: World, tmp_path: Path) -> None:
    new = tmp_path / "new.txt"
    new.write_text("The telescope sees the nebula.\n" * 30)
    line = ("tokenizer", "train", new, "--extend", world.model("bert"), "--workers", 1)
    told(*line, "--vocab-size", 130, "--out", tmp_path / "wider")
    old, wider = ((folder / "vocab.txt").read_text().split("\n")[:-1]
                  for folder in (world.folder / "tokens", tmp_path / "wider"))  # fmt: skip
    assert wider[: len(old)] == old
    assert {"telescope", "nebula"} & set(wider[len(old) :])
    more = (f"init_from={world.model('bert')}", f"tokenizer={tmp_path / 'wider'}")
    (facts,) = told(
        *world.small.pretraining(world.folder, "continue", *more, steps=1), "--out", tmp_path / "on"
    )
    assert AutoConfig.from_pretrained(facts["model"]).vocab_size == len(wider)


def test_token_ids_are_those_of_transformers(world: World) -> None:
    ours = world.embedder("bert")
    theirs = AutoTokenizer.from_pretrained(world.model("bert"))
    ids = [list(each) for each in ours.tokenize(TEXTS).ids]
    assert ids == [
        theirs(text, truncation=True, max_length=ours.max_len).input_ids for text in TEXTS
    ]


def test_a_text_of_too_many_tokens_is_counted(world: World) -> None:
    lost = world.embedder("bert").tokenize(TEXTS).lost
    assert [bool(count) for count in lost] == [False, False, False, False, True]


# --- Encoders and pre-training (rows 5 to 17, 32) ----------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_learns_and_transformers_computes_its_states(world: World, family: str) -> None:
    facts = world.facts(family)
    assert facts["figures"]["mlm"] < facts["figures_at_start"]["mlm"] - 0.2
    folder = world.model(family)
    assert AutoConfig.from_pretrained(folder).model_type in (family, "bert")
    read = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    read = {name: value[:, : world.embedder(family).max_len] for name, value in read.items()}
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**read).last_hidden_state
    kept = [row for row in range(len(TEXTS)) if row != 4]  # transformers cut [SEP] of the long one
    mask = read["attention_mask"][:, :, None]
    expected = ((states * mask).sum(1) / mask.sum(1)).numpy()
    found = world.embedder(family).encode(TEXTS, normalize_embeddings=False)
    np.testing.assert_allclose(found[kept], expected[kept], atol=1e-4)


@pytest.mark.parametrize(
    ("family", "figures"),
    [
        ("bert", {"nsp", "nsp_accuracy"}),
        ("albert", {"sop", "sop_accuracy"}),
        ("electra", {"rtd", "rtd_accuracy"}),
        ("distilbert", {"soft", "cosine"}),
    ],
)
def test_the_objective_of_a_family_is_measured(
    world: World, family: str, figures: set[str]
) -> None:
    facts = world.facts(family)
    assert figures | {"mlm", "perplexity"} <= facts["figures"].keys()
    assert figures.isdisjoint(world.facts("roberta")["figures"])
    if family in ("electra", "distilbert"):
        loss = "rtd" if family == "electra" else "soft"
        assert facts["figures"][loss] < facts["figures_at_start"][loss]


def test_layers_of_albert_share_weights_and_a_student_has_half_the_layers(world: World) -> None:
    def numbers(family: str) -> int:
        layers = AutoModel.from_pretrained(world.model(family)).encoder.named_parameters()
        return sum(each.numel() for name, each in layers if "embedding" not in name)

    assert numbers("bert") == 2 * numbers("albert")
    assert AutoConfig.from_pretrained(world.model("distilbert")).n_layers == 1
    assert AutoConfig.from_pretrained(world.model("bert")).num_hidden_layers == 2


def test_recipes_have_the_published_settings() -> None:
    recipes = {
        name: load_recipe(PretrainRecipe, "pretrain", name, ["size=base"])
        for name in ("bert", "roberta", "albert", "electra")
    }
    bert = recipes["bert"]
    assert (bert.model.layers, bert.model.hidden_size, bert.model.heads) == (12, 768, 12)
    assert (bert.mask.rate, bert.mask.mask_share, bert.mask.random_share) == (0.15, 0.8, 0.1)
    assert (bert.optim.clip, bert.optim.weight_decay, bert.batching.size) == (1.0, 0.01, 256)
    assert {name: each.mask.static for name, each in recipes.items()} == {
        "bert": True, "roberta": False, "albert": False, "electra": False
    }  # fmt: skip
    kinds = [recipes[name].segments.kind for name in ("bert", "albert", "roberta")]
    assert kinds == ["nsp", "sop", "full-sentences"]
    assert recipes["electra"].objective.replaced_weight == 50


@pytest.mark.parametrize(("preset", "width"), [("bert-base", 768), ("bert-large", 1024)])
def test_base_and_large_are_presets(preset: str, width: int) -> None:
    done = run("train", "bi-encoder", "stsb", "--set", f"model={preset}", "--set", "data.train=no")
    assert done.code == 2
    assert "tokenizer" in done.err  # the preset is known, and needs one
    assert "bert-hugh" not in done.err
    assert f"{preset} | {'12' if width == 768 else '24'} x {width}" in (
        ROOT / "docs" / "encoders.md"
    ).read_text(encoding="utf-8")


def test_masks_are_drawn_anew_or_kept_and_steps_are_reproducible(
    world: World, tmp_path: Path
) -> None:
    def losses(name: str, *more: str) -> list[float]:
        line = world.small.pretraining(world.folder, "roberta", *more, steps=6)
        told(*line, "--out", tmp_path / name)
        lines = map(json.loads, (tmp_path / name / "log.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if line["kind"] == "step"]

    assert losses("a") == losses("b")
    assert losses("a2") != losses("static", "mask.static=true")
    assert losses("a3") != losses("words", "mask.whole_word=true")


def test_a_run_that_goes_on_ends_as_one_that_was_not_stopped(world: World, tmp_path: Path) -> None:
    line = partial(world.small.pretraining, world.folder, "bert", "checkpoint.every=2")
    told(*line(steps=4), "--out", tmp_path / "whole")
    told(*line(steps=4), "--out", tmp_path / "cut")
    last = tmp_path / "cut" / "ckpt-00000004"
    last.rename(tmp_path / "lost")
    told("pretrain", "--resume", tmp_path / "cut")
    model = "ckpt-00000004/model/model.safetensors"
    assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_a_trained_model_goes_on_on_other_text(world: World) -> None:
    figures = world.facts("continue")
    assert figures["figures_at_start"]["mlm"] < world.facts("bert")["figures_at_start"]["mlm"] - 1
    assert figures["figures"]["mlm"] < figures["figures_at_start"]["mlm"]


def test_holes_are_filled_and_masked_words_measured(world: World) -> None:
    filled = told("fill-mask", world.model("roberta"), "The comet [MASK] the moon.", "-k", 3)
    assert [word["rank"] for word in filled] == [1, 2, 3]
    assert filled[0]["text"] != filled[1]["text"]
    source = world.folder / "corpus.jsonl"
    (figures,) = told("eval", "mlm", source, "--model", world.model("roberta"), "--pseudo", 1)
    tokens = sum(map(len, world.embedder("roberta").tokenize([
        json.loads(line)["text"] for line in source.read_text().splitlines()
    ]).ids))  # fmt: skip
    assert 0.1 < figures["masked"] / tokens < 0.2
    assert figures["loss"] < world.facts("roberta")["figures_at_start"]["mlm"] - 1


# --- Sentence embeddings (rows 22 to 28, 33, 34) -----------------------------------------------


@pytest.mark.parametrize(
    ("name", "figure", "least"),
    [
        ("nli", "accuracy", 0.3),
        ("stsb", "spearman", 0.3),
        ("nli-then-stsb", "spearman", 0.3),
        ("triplet", "triplets", 0.3),
        ("mnrl-nli", "found", 0.01),
        ("paraphrase", "found", 0.01),
        ("cross-stsb", "spearman", 0.3),
        ("cross-nli", "accuracy", 0.3),
    ],
)
def test_a_recipe_learns(world: World, name: str, figure: str, least: float) -> None:
    assert world.gain(name, figure) > least


@pytest.mark.parametrize("name", ["query-passage", "simcse", "distill", "relevance"])
def test_the_loss_of_a_recipe_falls(world: World, name: str) -> None:
    losses = world.losses(name)
    assert len(losses) == 30
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.parametrize(
    ("loss", "data", "form"),
    [
        ("contrastive", "binary", "pairs"),
        ("online_contrastive", "binary", "pairs"),
        ("cosent", "sts", "pairs"),
        ("angle", "sts", "pairs"),
        ("all_triplets", "classes", "classes"),
        ("hardest_triplets", "classes", "classes"),
        ("semi_hard_triplets", "classes", "classes"),
        ("margin_mse", "triplets", "triplets"),
        ("score_divergence", "triplets", "triplets"),
    ],
)
def test_every_other_loss_changes_the_model(
    world: World, tmp_path: Path, loss: str, data: str, form: str
) -> None:
    settings = [f"data.train={world.folder / data}.jsonl", f"data.form={form}", f"loss.name={loss}"]
    if form == "triplets":
        settings.append(f"teacher={world.model('cross-stsb')}")
    out = world.learn(tmp_path / "run", "bi-encoder", "stsb", *settings, "loss.matryoshka=[32, 8]")
    after = Embedder(out / "model", precision="fp32").encode(TEXTS)
    assert not np.allclose(after, world.embedder("bert").encode(TEXTS), atol=1e-3)


@pytest.mark.parametrize("kind", ["bce", "pairwise", "list_net", "mse"])
def test_every_other_loss_of_cross_encoders_falls(world: World, tmp_path: Path, kind: str) -> None:
    recipe, data = ("stsb", "sts") if kind == "mse" else ("relevance", "triplets")
    settings = [f"data.train={world.folder / data}.jsonl", f"loss={kind}"]
    settings += ["data.form=triplets"] if data == "triplets" else []
    out = world.learn(tmp_path / "run", "cross-encoder", recipe, *settings, steps=20)
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "step"]
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


@pytest.mark.parametrize(
    "concatenation", ["u,v", "|u-v|", "u*v", "|u-v|,u*v", "u,v,u*v", "u,v,|u-v|", "u,v,|u-v|,u*v"]
)
def test_the_classifier_of_nli_reads_seven_concatenations(
    world: World, tmp_path: Path, concatenation: str
) -> None:
    parts = json.dumps(concatenation.split(","))
    settings = (f"data.train={world.folder}/nli.jsonl", f"loss.concatenation={parts}")
    out = world.learn(tmp_path / "run", "bi-encoder", "nli", *settings)
    assert Embedder(out / "model", precision="fp32").dim == 32


@pytest.mark.parametrize(
    "pooling", ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_a_pooling_is_trained_and_equals_sentence_transformers(
    world: World, tmp_path: Path, pooling: str
) -> None:
    settings = (f"data.train={world.folder}/sts.jsonl", f'pooling=["{pooling}"]')
    model = world.learn(tmp_path / "run", "bi-encoder", "stsb", *settings) / "model"
    ours = Embedder(model, precision="fp32", device="cpu").encode(TEXTS)
    theirs = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    np.testing.assert_allclose(ours, theirs.encode(TEXTS), atol=1e-5)
    alone = [Embedder(model, precision="fp32").encode([text])[0] for text in TEXTS]
    np.testing.assert_allclose(ours, alone, atol=1e-5)  # padding has no effect


def test_sentence_training_beats_the_raw_encoder(world: World) -> None:
    reports = {}
    for name in ("bert", "stsb"):
        line = ("eval", "sts", world.folder / "sts.jsonl", "--model", world.model(name), *EXACT)
        reports[name] = json.dumps(told(*line, "--no-cache", "--baselines"))
    scores = {
        name: float(re.findall(r'"spearman": ([-\d.]+)', report)[0])
        for name, report in reports.items()
    }
    assert scores["stsb"] > scores["bert"] + 0.3
    assert len(re.findall("spearman", reports["bert"])) >= 4  # the model and three baselines


def test_similar_pairs_are_found_among_all(world: World) -> None:
    texts = [world.small.text(n) for n in range(8)]
    rows = [{"_id": str(n), "text": text} for n, text in enumerate([*texts, texts[3]])]
    source = world.small.write_rows(world.folder / "some.jsonl", rows)
    line = ("pairs", source, "--model", world.model("triplet"), *EXACT, "--threshold", "0.9999")
    found = json.dumps(told(*line))
    assert '"3"' in found
    assert '"8"' in found


@pytest.mark.parametrize("architecture", ["bert", "mpnet", "xlm-roberta"])
def test_the_architectures_of_published_sentence_models_load(
    tmp_path: Path, architecture: str
) -> None:
    backbone = modules.Transformer(str(bare(tmp_path / "bare", architecture)))
    pooling = modules.Pooling(backbone.get_embedding_dimension(), "mean")
    SentenceTransformer(modules=[backbone, pooling, modules.Normalize()], device="cpu").save(
        str(tmp_path / "model")
    )
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu", local_files_only=True)
    texts = ["the cat sat", "a dog ran far away"]
    ours = Embedder(tmp_path / "model", precision="fp32", device="cpu").encode(texts)
    np.testing.assert_allclose(ours, theirs.encode(texts), atol=1e-5)


def test_int8_is_near_to_exact_and_is_remembered(world: World) -> None:
    exact = world.embedder("triplet").encode(TEXTS)
    whole = Embedder(world.model("triplet"), precision="int8", device="cpu")
    cosines = np.sum(exact * whole.encode(TEXTS), 1) / (
        np.linalg.norm(exact, axis=1) * np.linalg.norm(whole.encode(TEXTS), axis=1)
    )
    assert cosines.min() > 0.97
    assert not np.array_equal(exact, whole.encode(TEXTS))
    assert Index.from_texts(TEXTS[:2], model=whole).identity.precision == "int8"


def test_onnx_computes_the_same_vectors(world: World) -> None:
    graph = Embedder(world.model("triplet"), engine="onnx", device="cpu", precision="fp32")
    np.testing.assert_allclose(
        graph.encode(TEXTS), world.embedder("triplet").encode(TEXTS), atol=1e-4
    )


# --- Heads (rows 18 to 21) ---------------------------------------------------------------------


def test_a_cross_encoder_scores_as_sentence_transformers_does_and_reranks(world: World) -> None:
    reranker = Reranker(world.model("cross-stsb"), precision="fp32", device="cpu")
    theirs = CrossEncoder(str(world.model("cross-stsb")), device="cpu", local_files_only=True)
    asked, other = world.small.sentence(3, 3), world.small.sentence(1, 9)
    pairs = [(asked, world.small.sentence(3, 6)), (asked, other), (other, asked)]
    np.testing.assert_allclose(reranker.predict(pairs), theirs.predict(pairs), atol=1e-5)
    ranked = reranker.rank(asked, [other, world.small.sentence(3, 6)])
    assert len(ranked) == 2
    assert reranker.predict(pairs)[0] > reranker.predict(pairs)[1]


# --- Index and search (row 31 and part C) ------------------------------------------------------


def test_from_documents_to_reranked_hits(world: World, tmp_path: Path) -> None:
    line = ("index", "build", world.folder / "corpus.jsonl", "--out", tmp_path / "i")
    told(*line, "--model", world.model("triplet"), *EXACT)
    asked = world.small.sentence(2, 6)
    for mode in ("dense", "lexical", "hybrid"):
        hits = told("search", tmp_path / "i", asked, "--mode", mode, *EXACT, "-k", 5)
        assert {world.small.NAMES[int(hit["doc_id"][1:]) % 4] for hit in hits} == {"bread"}
    options = ("--rerank", world.model("cross-stsb"), "--rerank-depth", 12, "-k", 3, *EXACT)
    hits = told("search", tmp_path / "i", asked, *options)
    assert "rerank" in hits[0]["stages"]
    assert [hit["rank"] for hit in hits] == [1, 2, 3]


def test_changes_give_the_index_that_a_new_build_gives(world: World) -> None:
    rows = [Document(f"d{n}", world.small.text(n)) for n in range(20)]
    changed = Index.build(rows[:12], model="hashing")
    changed.add(rows[12:], model="hashing")
    changed.upsert([Document("d3", rows[7].text)], model="hashing")
    changed.delete(["d5"])
    changed.compact()
    rows[3] = Document("d3", rows[7].text)
    new = Index.build([row for row in rows if row.doc_id != "d5"], model="hashing")
    for mode in ("dense", "lexical", "hybrid"):
        found = [
            {hit.doc_id: hit.score for hit in SearchEngine(each, "hashing").search(
                "the baker turns the moon", 19, mode=mode
            )} for each in (changed, new)
        ]  # fmt: skip
        assert found[0] == pytest.approx(found[1], abs=1e-6)
    assert changed.check().problems == ()


def test_a_filter_gives_k_documents_wherever_k_match(index: Index) -> None:
    engine = SearchEngine(index, "hashing")
    for mode in ("dense", "hybrid"):
        hits = engine.search("the moon", 5, mode=mode, where="kind = 'mills' AND year >= 20")
        assert len(hits) == 5
        assert all(int(hit.doc_id[1:]) >= 20 and int(hit.doc_id[1:]) % 4 == 1 for hit in hits)


def test_options_of_a_search_have_their_effects(index: Index) -> None:
    engine = SearchEngine(index, "hashing")
    assert ids(engine.search("moon", 3, offset=1)) == ids(engine.search("moon", 4))[1:]
    assert dict(engine.facets("moon", "kind", mode="lexical")["kind"].counts) == {"space": 12}
    assert ids(engine.search("mooon", 3, mode="lexical", fuzzy=1)) == ids(
        engine.search("moon", 3, mode="lexical")
    )
    assert engine.suggest("mooon comet") == "moon comet"
    (best, *_) = engine.search("the moon meets", highlight=True)
    assert {"moon", "meets"} >= {*best.matched_words} > set()
    assert engine.similar(["d3"])[0].doc_id != "d3"
    rrf = engine.search("the moon meets", fusion=Fusion(method="rrf"), mode="hybrid")
    assert rrf[0].stages.keys() == {"dense", "lexical", "fused"}
    spread = engine.search("the moon meets the dough", 6, diversity=0.9)
    assert {hit.doc_id for hit in spread} != set(ids(engine.search("the moon meets the dough", 6)))


def test_long_documents_are_searched_by_their_passages(world: World, tmp_path: Path) -> None:
    long = " ".join([*(world.small.text(n) for n in range(0, 40, 4)), world.small.text(3)])
    made = Index.build(
        [Document("long", long), Document("short", "germ")], model=world.embedder("triplet")
    )
    engine = SearchEngine(made, world.embedder("triplet"))
    (hit, *_) = engine.search(world.small.text(3), mode="dense")
    assert hit.doc_id == "long"
    assert (made.info().documents, made.info().passages > 2) == (2, True)
    assert len(engine.search(world.small.text(3), group=False)) > 2  # passages


def test_an_index_of_another_model_is_refused(world: World) -> None:
    made = Index.build([Document("a", "germ")], model=world.embedder("triplet"))
    with pytest.raises(ModelMismatch):
        SearchEngine(made, world.embedder("stsb")).search("germ", mode="dense")


def test_a_static_model_answers_queries_over_the_index_of_its_teacher(
    world: World, tmp_path: Path
) -> None:
    teacher, texts = world.model("stsb"), [world.small.text(n) for n in range(300)]
    data = tmp_path / "texts.txt"
    data.write_text("\n".join(texts))
    settings = (f"data.train={data}", f"teacher={teacher}", "model=static")
    out = world.learn(tmp_path / "run", "bi-encoder", "static", *settings, steps=200)
    made = Index.from_texts(texts[:60], model=teacher, out=tmp_path / "i")
    (added,) = told("index", "query-model", tmp_path / "i", out / "model")
    assert added["cosine"] > 0.5
    made.refresh()
    hits = SearchEngine(made, query_model="fast").search(texts[7], mode="dense")
    assert "7" in ids(hits)


def test_an_approximate_index_is_tuned_to_a_recall(world: World, tmp_path: Path) -> None:
    rows = [Document(str(n), f"{world.small.text(n)} word{n} term{n % 97}") for n in range(600)]
    made = Index.build(rows, out=tmp_path / "i", model="hashing")
    (report,) = told("index", "tune", tmp_path / "i", "--recall", "0.9", "--max-minutes", "1")
    assert report["tuning"]["recall"] >= 0.9
    for factory in ("IVF8,Flat", "HNSW16"):
        other = Index.build(rows, model="hashing", spec=IndexSpec(factory=factory))
        hits = SearchEngine(other, "hashing").search("word17 term17", 1, mode="dense")
        assert ids(hits) == ids(
            SearchEngine(made, "hashing").search("word17 term17", 1, mode="dense")
        )


def test_a_folder_is_synced_and_a_backup_answers_alike(world: World, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("# Moon\n\nThe moon turns.\n")
    (notes / "b.md").write_text("# Dough\n\nThe dough rises.\n")
    told("index", "sync", tmp_path / "i", notes, "--model", "hashing")
    (notes / "b.md").unlink()
    told("index", "sync", tmp_path / "i", notes)
    assert [hit["doc_id"] for hit in told("search", tmp_path / "i", "dough moon")] == ["a.md"]
    Index.open(tmp_path / "i").backup(tmp_path / "copy")
    assert told("search", tmp_path / "copy", "moon")[0]["doc_id"] == "a.md"
    assert run("index", "check", tmp_path / "copy").code == 0
    max((tmp_path / "copy").rglob("*.*"), key=lambda path: path.stat().st_size).write_bytes(b"")
    assert run("index", "check", tmp_path / "copy").code == 1


def test_retrieval_is_evaluated_and_two_runs_compared(world: World, tmp_path: Path) -> None:
    for mode in ("dense", "lexical"):
        line = ("eval", "retrieval", world.folder / "beir", "--model", world.model("triplet"))
        (told_of,) = told(*line, *EXACT, "--mode", mode, "--no-cache", "--out", tmp_path / mode)
        assert "nDCG@10" in json.dumps(told_of)
    (compared, *_) = told("eval", "compare", tmp_path / "dense", tmp_path / "lexical")
    assert {"p", "p_value", "corrected_p"} & compared.keys() or "p" in json.dumps(compared)


# --- Several machines, other engines, servers --------------------------------------------------


def test_shards_answer_as_one_index_does(world: World, index: Index, tmp_path: Path) -> None:
    line = ("index", "build", world.folder / "corpus.jsonl", "--model", "hashing", "--shards", 3)
    told(*line, "--out", tmp_path / "many")
    many = Index.open(tmp_path / "many")
    assert many.state.is_sharded
    for mode in ("dense", "hybrid"):
        one, other = (
            SearchEngine(each, "hashing").search("the moon meets", 10, mode=mode, where="year > 4")
            for each in (index, many)
        )
        assert ids(one) == ids(other)
    many.delete(["d3"])
    assert many.get("d3") is None


@pytest.fixture(scope="module")
def server(index: Index, world: World) -> Iterator[Live]:
    options = ("--rerank", world.model("cross-stsb"), *EXACT)
    with live_server(index.path, *options) as live:
        yield live


def test_http_speaks_its_own_dialect_and_three_others(server: Live) -> None:
    assert server.search("the moon meets", mode="dense", k=2)[0]["rank"] == 1
    vectors = server.post("/v1/embeddings", input=["moon", "dough"], model="any").json["data"]
    assert [each["index"] for each in vectors] == [0, 1]
    assert len(server.post("/embed", inputs=["moon"]).json[0]) == len(vectors[0]["embedding"])
    cohere = server.post("/v2/rerank", query="moon", documents=["dough", "moon"], model="any")
    assert {each["index"] for each in cohere.json["results"]} == {0, 1}
    assert len(server.post("/rerank", query="moon", texts=["dough", "moon"]).json) == 2
    assert "/search" in json.dumps(server.ask("GET", "/openapi.json").json)
    assert b"# TYPE" in server.ask("GET", "/metrics").raw


def test_the_search_page_is_served(server: Live) -> None:
    page = server.ask("GET", "/")
    assert page.status == 200
    assert b"<input" in page.raw


def test_a_language_model_gets_tools_or_the_name_of_the_extra(index: Index) -> None:
    if importlib.util.find_spec("mcp") is not None:
        pytest.skip("tests/integrations/serving runs it")
    done = run("mcp", index.path)
    assert done.code != 0
    assert "pip install -e '.[mcp]'" in done.err


# --- GPU ---------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_refused_and_its_extra_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras["optional-dependencies"]["gpu"][0].startswith("faiss-gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="cuda"):
            Embedder(device="cuda")
    assert "faiss" in run("doctor", "--json").out


@pytest.mark.gpu
def test_a_gpu_finds_what_the_cpu_finds(world: World) -> None:
    rows = [Document(str(n), f"{world.small.text(n)} word{n}") for n in range(600)]
    made = Index.build(
        rows, model=world.model("triplet"), spec=IndexSpec(factory="IVF8,Flat"), device="cuda"
    )
    found = [
        ids(SearchEngine(made, Embedder(world.model("triplet"), device=device)).search(
            "the moon meets", 5, mode="dense"
        )) for device in ("cpu", "cuda")
    ]  # fmt: skip
    assert found[0] == found[1]


# --- The surface -------------------------------------------------------------------------------


def test_every_public_name_can_be_imported() -> None:
    names = import_module("sbert_search").__all__
    assert {"Embedder", "Index", "SearchEngine", "Reranker"} <= {*names}
    assert all(getattr(sbert_search, name) is not None for name in names)


def test_every_command_explains_itself() -> None:
    listed = re.findall(r"^  (\S+)  ", run("--help").out.split("Commands:")[1], re.MULTILINE)
    assert {"index", "search", "embed", "train", "pretrain", "eval", "serve"} <= {*listed}
    for command in listed:
        done = run(command, "--help")
        assert (done.code, f"sbert-search {command}" in done.out) == (0, True)


def test_importing_the_package_imports_no_wing() -> None:
    code = "import sys, sbert_search; print(*sorted(n for n in sys.modules if n[:5] == 'sbert'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["sbert_search", "sbert_search.version"]
