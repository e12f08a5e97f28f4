"""Pre-training by recipe: it learns, it is judged, and what does not fit is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sbert_search.base.distributed import Ranks
from sbert_search.base.tensors import write_tensors
from sbert_search.errors import (
    CheckpointError,
    ConfigError,
    CorpusError,
    ModelError,
    SbertSearchError,
)
from sbert_search.evaluate.perplexity import evaluate_masked
from sbert_search.models.encoder.layouts import to_settings
from sbert_search.models.encoder.weights import read_checkpoint, read_tensors
from sbert_search.models.initialization import alternate, extend_vocabulary
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.models.replaced_token_detection import ReplacedTokenModel
from sbert_search.text.documents import CorpusReader
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.text.tokens.wordpiece import VocabularySettings, train_tokenizer
from sbert_search.train.loop.log import LOG, read_log
from sbert_search.train.loop.loop import Result
from sbert_search.train.pretrain import PretrainRecipe, build, pretrain
from sbert_search.train.pretraining_data import prepare
from sbert_search.train.recipe import load_recipe, shipped_recipes
from tests.models.tiny import FAMILIES as SHAPES
from tests.models.tiny import tiny_encoder
from tests.train.small import unlike
from tests.train.words import write_texts, write_vocabulary

SIZES = ("tiny", "mini", "small", "base")
SMALL = ("hidden_size=32", "heads=2", "intermediate_size=64", "max_positions=64")


def recipe_of(name: str, *overrides: str) -> PretrainRecipe:
    return load_recipe(PretrainRecipe, "pretrain", name, overrides)


def small_recipe(name: str, folder: Path, *overrides: str) -> PretrainRecipe:
    """A recipe on 32 texts of 30 words, for a model of 32 numbers a token."""
    vocabulary, texts = folder / "vocabulary", folder / "texts.jsonl"
    if not vocabulary.exists():
        write_vocabulary(vocabulary)
        write_texts(texts, 32, sentences=3, words=10)
    shape = [f"model.{setting}" for setting in (*SMALL, "layers=2")]
    if name == "electra":
        shape += [f"generator.{setting}" for setting in (*SMALL, "layers=1", "embedding_size=32")]
        shape += ["generator.hidden_size=16", "generator.heads=1"]
    common = (
        "device=cpu",
        "precision=fp32",
        "budget.steps=4",
        "batching.size=16",
        "batching.micro_size=8",
        "segments.max_len=32",
        "data.held_out=0.25",
        "schedule.warmup=0",
    )
    data = [f"data.train={texts}"]
    if name != "distilbert":
        data += [f"tokenizer={vocabulary}"]
    return recipe_of(name, "size=tiny", *shape, *common, *data, *overrides)


def dev_figures(result: Result) -> dict[str, float]:
    lines = [r for r in read_log(result.last.parent / LOG) if r["kind"] == "dev"]
    figures: dict[str, float] = lines[-1]["figures"]
    return figures


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", shipped_recipes("pretrain"))
def test_shipped_recipes_can_be_read_and_saved(name: str, size: str) -> None:
    more = [f"size={size}"] * (name != "continue") + ["teacher=t"] * (name == "distilbert")
    recipe = recipe_of(name, *more)
    to_settings(recipe.model)
    if recipe.generator is not None:
        to_settings(recipe.generator)
        assert recipe.generator.table_size == recipe.model.table_size
    assert recipe.segments.max_len <= recipe.model.max_positions
    assert not recipe.evaluation.higher_is_better


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "electra", "deberta"])
def test_each_family_trains_and_its_checkpoint_goes_on(name: str, tmp_path: Path) -> None:
    result = pretrain(small_recipe(name, tmp_path), tmp_path / "run")
    figures = dev_figures(result)
    assert all(math.isfinite(value) for value in figures.values())
    assert figures["perplexity"] == pytest.approx(math.exp(figures["mlm"]))
    assert figures["mlm"] == pytest.approx(math.log(205), abs=0.7)
    folder = result.last / "model"
    model = MaskedLanguageModel.load(folder / "generator" if name == "electra" else folder)
    assert model.tokenizer.vocab_size == 205
    assert (model.mask_decoder is not None) == (name == "deberta")
    onward = small_recipe("continue", tmp_path, f"init_from={folder}")
    again = pretrain(onward, tmp_path / "again")
    assert json.loads((again.last / "model" / "config.json").read_text())["model_type"] == name


@pytest.mark.thorough
@pytest.mark.parametrize("family", ["mpnet", "xlm-roberta", "modernbert"])
def test_a_published_family_is_trained_on_and_a_stopped_run_loses_no_bit(
    family: str, tmp_path: Path
) -> None:
    recipe = small_recipe("bert", tmp_path)  # writes the words and the texts
    tokenizer = TextTokenizer.from_folder(tmp_path / "vocabulary", 32)
    shape = {"vocab_size": tokenizer.vocab_size, "max_positions": recipe.model.max_positions}
    MaskedLanguageModel(tiny_encoder(**shape, **SHAPES[family]), tokenizer).save(tmp_path / "m")
    settings = (f"init_from={tmp_path / 'm'}", "checkpoint.every=2")
    recipe = small_recipe("continue", tmp_path, *settings)
    whole, cut = (pretrain(recipe, tmp_path / name) for name in ("whole", "cut"))
    assert json.loads((whole.last / "model" / "config.json").read_text())["model_type"] == family
    shutil.rmtree(cut.last)
    assert pretrain(recipe, tmp_path / "cut", resume=True).state.step == 4
    assert not unlike(tmp_path / "whole", tmp_path / "cut")


def test_a_roberta_takes_the_padding_id_of_its_tokenizer(tmp_path: Path) -> None:
    recipe = small_recipe("roberta", tmp_path)
    words = (tmp_path / "vocabulary" / "vocab.txt").read_text("utf-8").split("\n")
    words.insert(1, words.pop(0))  # [PAD] is the second token, as in RoBERTa
    (tmp_path / "padded").mkdir()
    (tmp_path / "padded" / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    model, _ = build(replace(recipe, tokenizer=tmp_path / "padded"))
    config = model.encoder.config
    assert (config.pad_id, config.position_offset) == (1, 2)
    assert to_settings(config)["max_position_embeddings"] == 64 + 2


@pytest.mark.thorough
def test_a_student_begins_with_every_other_layer_of_its_teacher(tmp_path: Path) -> None:
    assert alternate(12, 6) == [0, 2, 4, 7, 9, 11]
    taught = pretrain(small_recipe("bert", tmp_path, "model.layers=4"), tmp_path / "teacher")
    teacher = MaskedLanguageModel.load(taught.last / "model")
    recipe = small_recipe("distilbert", tmp_path, f"teacher={taught.last / 'model'}")
    student, objective = build(recipe)
    assert isinstance(student, MaskedLanguageModel)
    assert student.encoder.config.token_type_vocab == 0
    for block, source in zip(student.encoder.blocks, (0, 3), strict=True):
        copied = teacher.encoder.blocks[source].state_dict()
        assert all((copied[name] == tensor).all() for name, tensor in block.state_dict().items())
    assert set(objective.units) == {"soft", "mlm", "cosine"}
    figures = dev_figures(pretrain(recipe, tmp_path / "student"))
    assert {"soft", "mlm", "cosine", "mlm_accuracy"} < figures.keys()
    one = small_recipe(
        *("distilbert", tmp_path, f"teacher={taught.last / 'model'}"),
        *("objective.soft_weight=0", "objective.cosine_weight=0"),
    )
    assert set(build(one)[1].units) == {"mlm"}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with new weights, to learn from."""
    folder = tmp_path_factory.mktemp("teacher")
    model, _ = build(small_recipe("bert", folder))
    model.save(folder / "model")
    return folder / "model"


ALBERT = ("model.layout=albert", "model.embedding_size=32", "model.token_type_vocab=2")
UNLIKE: dict[str, tuple[tuple[str, ...], str]] = {
    "shared layers": (
        ("model.layout=albert", "model.layer_groups=1", "model.embedding_size=32"),
        "layers of the student share their weights",
    ),
    "embedding size": (
        (*ALBERT, "model.embedding_size=16", "model.layer_groups=2"),
        "embedding_size is 16, and the teacher's None",
    ),
    "positions": (
        ("model.layout=roberta", "model.position_offset=1", "model.token_type_vocab=1"),
        "position_offset is 1, and the teacher's 0",
    ),
    "no positions": (
        (
            *("model.layout=deberta", "model.position_embeddings=false", "model.key_bias=false"),
            *("model.attention_terms=['c2c','c2p']", "model.relative_positions=32"),
        ),
        "position_embeddings is False, and the teacher's True",
    ),
    "more layers": (("model.layers=3",), "layers is 3, and the teacher has 2"),
    "width": (("model.hidden_size=16",), "hidden_size is 16, and the teacher's 32"),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_a_student_of_another_shape_is_refused(case: str, teacher: Path, tmp_path: Path) -> None:
    overrides, message = UNLIKE[case]
    recipe = small_recipe("distilbert", tmp_path, f"teacher={teacher}", *overrides)
    with pytest.raises(ConfigError, match=message):
        build(recipe)


def test_a_deberta_learns_from_a_deberta(tmp_path: Path) -> None:
    """It has no table of positions, but one of distances."""
    model, _ = build(small_recipe("deberta", tmp_path))
    model.save(tmp_path / "teacher")
    recipe = small_recipe("deberta", tmp_path, "tokenizer=x")
    kept = {"model.layout": "deberta", "model.position_embeddings": "false"}
    kept |= {"model.key_bias": "false", "model.attention_terms": "['c2c','c2p','p2c']"}
    kept |= {"model.relative_positions": str(recipe.model.relative_positions), "model.layers": "1"}
    shape = [f"{name}={value}" for name, value in kept.items()]
    student, _ = build(
        small_recipe("distilbert", tmp_path, f"teacher={tmp_path / 'teacher'}", *shape)
    )
    assert (student.encoder.distances.weight == model.encoder.distances.weight).all()


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("tokenizer=words", "tokenizer = words"),
        ("init_from=model", "init_from = model"),
        ("mask_decoder=true", "mask_decoder = True"),
    ],
)
def test_a_student_takes_nothing_but_its_teacher(override: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=f"{shown} has no effect.*remove"):
        recipe_of("distilbert", "size=tiny", "teacher=t", override)


def test_a_shape_beside_a_start_is_said_to_be_ignored(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = (f"init_from={teacher}", "model.layers=3", "model.hidden_dropout=0.2")
    model, _ = build(small_recipe("bert", tmp_path, *common, "mask_decoder=true"))
    assert model.encoder.config.layers == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "model.layers = 3 (the model has 2), model.hidden_dropout = 0.2 (the model" in said
    assert "mask_decoder = True (the model has none)" in said
    build(small_recipe("continue", tmp_path, f"init_from={teacher}"))
    assert "settings are only for new models" not in capsys.readouterr().err


def test_a_changed_dev_text_is_refused_when_a_run_resumes(tmp_path: Path) -> None:
    dev = write_texts(tmp_path / "dev.jsonl", 6, sentences=6)
    quick = (f"data.dev={dev}", "checkpoint.every=1", "evaluation.every=1")
    pretrain(small_recipe("bert", tmp_path, *quick, "budget.steps=1"), tmp_path / "run")
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:-1]))
    shutil.rmtree(tmp_path / "run" / "tokens" / "dev")
    longer = small_recipe("bert", tmp_path, *quick, "budget.steps=2")
    with pytest.raises(CheckpointError, match="dev data was"):
        pretrain(longer, tmp_path / "run", resume=True)


def test_held_out_documents_are_not_trained_on(tmp_path: Path) -> None:
    recipe = small_recipe("bert", tmp_path)
    tokenizer = TextTokenizer.from_folder(tmp_path / "vocabulary", 32)
    corpora = prepare(
        recipe.data,
        tokenizer,
        recipe.segments,
        recipe.mask,
        out=tmp_path / "run",
        seed=0,
        ranks=Ranks(),
    )
    assert corpora.dev is not None
    assert corpora.train.identity["documents"] == [0, 24]
    assert corpora.dev.identity["documents"] == [24, 32]


def test_held_out_text_without_a_masked_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text": "a"}\n')
    settings = ("mask.rate=0.01", "segments.kind=full-sentences")
    recipe = small_recipe("bert", tmp_path, f"data.dev={tmp_path}/dev.jsonl", *settings)
    with pytest.raises(CorpusError, match=r"No token of the held-out text is masked.* data\.dev"):
        pretrain(recipe, tmp_path / "run")


def test_held_out_masks_do_not_depend_on_the_run(tmp_path: Path) -> None:
    quick = ("budget.steps=1", "optim.lr=0")
    one = pretrain(small_recipe("bert", tmp_path, *quick), tmp_path / "one")
    static = ("mask.static=false", "mask.rate=0.4")
    other = pretrain(small_recipe("bert", tmp_path, *quick, "mask.static=false"), tmp_path / "two")
    assert dev_figures(one) == dev_figures(other)
    more = pretrain(small_recipe("bert", tmp_path, *quick, *static), tmp_path / "three")
    assert dev_figures(one) != dev_figures(more)


@pytest.mark.thorough
def test_it_learns(tmp_path: Path) -> None:
    """32 texts by heart; the slow test has all families at full length."""
    recipe = small_recipe(
        *("bert", tmp_path, "budget.steps=150", "batching.size=64", "batching.micro_size=64"),
        *("optim.lr=1e-2", "segments.short_share=0", "data.held_out=0", "segments.kind=sop"),
        *("model.hidden_dropout=0", "model.attention_dropout=0", "optim.beta2=0.98"),
    )
    result = pretrain(recipe, tmp_path / "run")
    steps = [r for r in read_log(result.last.parent / LOG) if r["kind"] == "step"]
    assert steps[0]["losses"]["mlm"] > 5
    assert steps[-1]["losses"]["mlm"] < 0.5
    assert steps[-1]["figures"]["sop_accuracy"] > 0.95


FAMILIES: dict[str, tuple[str, ...]] = {
    "bert": (),
    "roberta": (),
    "albert": ("segments.kind=sop",),
    "electra": (),
    "deberta": (),
    "distilbert": (),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_six_families_learn_64_sequences_by_heart(name: str, tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "vocabulary")
    texts = write_texts(tmp_path / "texts.jsonl", 64, sentences=2, words=15)
    common = (
        *("size=tiny", "device=cpu", "precision=fp32", "budget.steps=400", "batching.size=64"),
        *("batching.micro_size=64", "segments.kind=document-sentences", "segments.max_len=33"),
        *("mask.static=true", "optim.lr=2e-3", "optim.beta2=0.98", "data.held_out=0"),
        *("model.hidden_dropout=0", "model.attention_dropout=0", "schedule.warmup=0.1"),
        *("evaluation.every=1000", "checkpoint.every=1000"),
        *(f"data.train={texts}", *FAMILIES[name]),
    )
    words = f"tokenizer={tmp_path / 'vocabulary'}"
    if name == "distilbert":
        taught = pretrain(recipe_of("bert", *common, words), tmp_path / "teacher")
        words = f"teacher={taught.last / 'model'}"
    result = pretrain(recipe_of(name, *common, words), tmp_path / "run")
    last = [r for r in read_log(result.last.parent / LOG) if r["kind"] == "step"][-1]
    if name == "electra":
        assert last["figures"]["rtd_accuracy"] > 0.95
    else:
        assert last["losses"]["mlm"] < 0.5
    if name == "albert":
        assert last["figures"]["sop_accuracy"] > 0.95


BAD: dict[str, tuple[tuple[str, ...], type[SbertSearchError], str]] = {
    "no text": (("data.train=[]",), ConfigError, "data.train=SOURCE"),
    "no vocabulary": (("tokenizer=.",), ModelError, "neither tokenizer.json nor vocab.txt"),
    "too long": (("segments.max_len=65",), ConfigError, "65, but the encoder has 64 positions"),
    "no teacher": (("objective.kind=distilled",), ConfigError, "needs a teacher"),
    "no generator": (("objective.kind=replaced",), ConfigError, "needs a generator"),
    "unused teacher": (("teacher=t",), ConfigError, "teacher has no effect .* 'masked'; remove"),
    "unused generator": (
        ("generator.layers=1",),
        ConfigError,
        "generator has no effect .* or set objective.kind=replaced",
    ),
    "pairs in roberta": (
        ("model.layout=roberta", "model.position_offset=1", "model.token_type_vocab=1"),
        ConfigError,
        "'roberta' .* cannot classify pairs",
    ),
    "layout that cannot hold it": (("model.embedding_size=8",), ConfigError, "cannot hold"),
    "layout without a pooler": (
        ("model.layout=electra",),
        ConfigError,
        r"'electra' cannot hold pooler = True, only False",
    ),
    "decoder without its layout": (("mask_decoder=true",), ConfigError, "layout 'deberta'"),
    "all held out": (("data.held_out=0.99",), CorpusError, "too few to train on"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_named(case: str, tmp_path: Path) -> None:
    overrides, error, message = BAD[case]
    with pytest.raises(error, match=message):
        pretrain(small_recipe("bert", tmp_path, *overrides), tmp_path / "run")
    # Only a text that is too short for the settings is found after it has been read.
    assert (tmp_path / "run").exists() == (error is CorpusError)
    assert not list(tmp_path.glob("run/ckpt-*"))


def refused(folder: Path, error: type[SbertSearchError], message: str, *overrides: str) -> None:
    with pytest.raises(error, match=message):
        pretrain(small_recipe("bert", folder, *overrides), folder / "run")


def test_bad_texts_and_vocabularies_are_named(tmp_path: Path) -> None:
    small_recipe("bert", tmp_path)
    one = write_texts(tmp_path / "one.jsonl", 1, sentences=4)
    (tmp_path / "empty.jsonl").write_text("")
    refused(tmp_path, CorpusError, "holds no rows", f"data.train={tmp_path / 'empty.jsonl'}")
    refused(tmp_path, CorpusError, "too few to train on", f"data.train={one}")
    alone = (f"data.train={one}", "data.held_out=0")
    refused(
        tmp_path,
        CorpusError,
        "NSP draws .* has only 1 document. Use segments.kind=sop",
        *alone,
    )
    apart = (f"data.dev={one}", f"data.folder={tmp_path / 'apart'}")
    refused(tmp_path, CorpusError, "held-out text: NSP draws", *apart)
    short = write_texts(tmp_path / "short.jsonl", 9, sentences=1)
    brief = [f"data.{name}={short}" for name in ("train", "dev")]
    no_pairs = "^No document has two sentences to pair; use segments.kind=full-sentences.$"
    refused(tmp_path, CorpusError, no_pairs, *brief, f"data.folder={tmp_path / 'brief'}")
    without = write_vocabulary(tmp_path / "without", leave_out="[MASK]")
    refused(tmp_path, ModelError, r"has no \[MASK\]", f"tokenizer={without}")


DOMAIN = ["carditis", "w7carditis", "w31ology"]


def extended_vocabulary(folder: Path) -> Path:
    """Give the model letters, and extend its vocabulary by what a domain often says."""
    texts = folder / "domain.jsonl"
    with texts.open("w") as file:
        for n in range(60):
            file.write(json.dumps({"text": f"w{n} {DOMAIN[n % 3]} w{n + 1}.\nw{n} w3"}) + "\n")
    old = folder / "vocabulary"
    with (old / "vocab.txt").open("a") as file:
        letters = sorted({letter for word in DOMAIN for letter in word})
        file.writelines(f"{letter}\n##{letter}\n" for letter in letters)
    settings = VocabularySettings(vocab_size=270, extend=old)
    return train_tokenizer(CorpusReader([texts]), folder / "extended", settings).out


@pytest.mark.thorough
def test_a_model_goes_on_with_an_extended_vocabulary(tmp_path: Path) -> None:
    small_recipe("bert", tmp_path)
    extended = extended_vocabulary(tmp_path)
    first = pretrain(small_recipe("bert", tmp_path), tmp_path / "first")
    old = MaskedLanguageModel.load(first.last / "model")
    words = (f"init_from={first.last / 'model'}", f"tokenizer={extended}")
    text = f"data.train={tmp_path / 'domain.jsonl'}"
    model, _ = build(small_recipe("continue", tmp_path, *words, text))
    assert isinstance(model, MaskedLanguageModel)
    pieces = {name: model.tokenizer.backend.token_to_id(name) for name in ("w7carditis", "w7")}
    made_of = old.tokenizer.backend.encode("w7carditis", add_special_tokens=False).ids
    assert len(made_of) == 9  # w7 and eight letters
    for grown, rows in (
        (model.encoder.embeddings.word.weight, old.encoder.embeddings.word.weight),
        (model.token_head.bias, old.token_head.bias),
    ):
        assert torch.equal(grown[: len(rows)], rows)
        assert torch.allclose(grown[pieces["w7carditis"]], rows[made_of].mean(dim=0))

    again = pretrain(small_recipe("continue", tmp_path, *words, text), tmp_path / "again")
    trained = MaskedLanguageModel.load(again.last / "model")
    assert trained.tokenizer.encode(["w7carditis"])[0] == [[2, pieces["w7carditis"], 3]]
    figures = evaluate_masked(trained, CorpusReader([tmp_path / "domain.jsonl"]), most=16)
    assert figures.masked > 0
    assert math.isfinite(figures.loss)
    vanilla = transformers.BertForMaskedLM.from_pretrained(again.last / "model")
    assert vanilla.get_input_embeddings().weight.shape == (trained.tokenizer.vocab_size, 32)


def test_a_discriminator_goes_on_with_an_extended_vocabulary(tmp_path: Path) -> None:
    small_recipe("electra", tmp_path)
    extended = extended_vocabulary(tmp_path)
    first = pretrain(small_recipe("electra", tmp_path), tmp_path / "first")
    words = (f"init_from={first.last / 'model'}", f"tokenizer={extended}")
    model, _ = build(small_recipe("electra", tmp_path, *words))
    assert isinstance(model, ReplacedTokenModel)
    size = model.tokenizer.vocab_size
    assert model.generator.encoder.config.vocab_size == model.encoder.config.vocab_size == size


def test_the_same_vocabulary_changes_nothing(tmp_path: Path) -> None:
    done = pretrain(small_recipe("bert", tmp_path), tmp_path / "first")
    read = read_checkpoint(done.last / "model")
    tokenizer = MaskedLanguageModel.load(done.last / "model").tokenizer
    same = extend_vocabulary(read, tokenizer, tokenizer)
    assert torch.equal(same.encoder.embeddings.word.weight, read.encoder.embeddings.word.weight)


def test_a_vocabulary_that_does_not_extend_the_model_is_refused(tmp_path: Path) -> None:
    done = pretrain(small_recipe("bert", tmp_path), tmp_path / "first")
    other = write_vocabulary(tmp_path / "other", leave_out="w7")
    init: Any = f"init_from={done.last / 'model'}"
    message = r"does not extend that of the model \(205\): 'w10' has the id 14, not 15"
    refused(tmp_path, ConfigError, message, init, f"tokenizer={other}")


def test_a_figure_that_the_objective_does_not_report_is_refused_first(tmp_path: Path) -> None:
    recipe = small_recipe("bert", tmp_path, "evaluation.figure=rtd")
    with pytest.raises(ConfigError, match=r"Unknown dev metric 'rtd'; known: mlm, .*Set eval"):
        pretrain(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("evaluation.figure=mlm_accuracy",), "the higher value of the dev metric mlm_accuracy"),
        (("evaluation.higher_is_better=true",), "the lower value of the dev metric mlm; set eval"),
        (
            ("evaluation.figure=perplexity", "evaluation.higher_is_better=true"),
            "the lower value of the dev metric perplexity",
        ),
    ],
)
def test_a_run_that_would_publish_its_worst_model_is_refused(
    tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        pretrain(small_recipe("bert", tmp_path, *settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    right = ("evaluation.figure=mlm_accuracy", "evaluation.higher_is_better=true")
    pretrain(small_recipe("bert", tmp_path, *right), tmp_path / "run")


def test_a_teacher_that_has_changed_is_refused_when_a_run_resumes(tmp_path: Path) -> None:
    folder = pretrain(small_recipe("bert", tmp_path), tmp_path / "teacher").last / "model"
    options = (f"teacher={folder}", "model.layers=1")
    pretrain(small_recipe("distilbert", tmp_path, *options), tmp_path / "run")
    tensors = {name: tensor * 1.001 for name, tensor in read_tensors(folder).items()}
    (folder / "model.safetensors").unlink()
    write_tensors(folder / "model.safetensors", tensors)
    with pytest.raises(CheckpointError, match="made with other settings: data was"):
        pretrain(small_recipe("distilbert", tmp_path, *options), tmp_path / "run", resume=True)


def test_a_trained_generator_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = pretrain(small_recipe("electra", tmp_path), tmp_path / "first").last / "model"
    model, _ = build(small_recipe("electra", tmp_path, f"init_from={first}"))
    assert isinstance(model, ReplacedTokenModel)
    trained = MaskedLanguageModel.load(first / "generator").state_dict()
    for name, tensor in model.generator.state_dict().items():
        assert torch.equal(tensor, trained[name]), name
    other = small_recipe("electra", tmp_path, f"init_from={first}", "generator.layers=2")
    with pytest.raises(ConfigError, match="generator of init_from has another shape"):
        build(other)
    shutil.rmtree(first / "generator")
    build(small_recipe("electra", tmp_path, f"init_from={first}"))
    assert "has no folder 'generator', so the generator begins anew" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bert", "electra", "roberta"])
def test_a_head_that_is_left_out_is_told(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = pretrain(small_recipe(name, tmp_path), tmp_path / "first").last / "model"
    build(small_recipe("continue", tmp_path, f"init_from={first}"))
    assert ("is left out: this run trains masked" in capsys.readouterr().err) == (name != "roberta")


def test_a_distillation_without_true_words_needs_another_figure(tmp_path: Path) -> None:
    teacher = pretrain(small_recipe("bert", tmp_path), tmp_path / "teacher").last / "model"
    options = (f"teacher={teacher}", "objective.mlm_weight=0", "model.layers=1")
    recipe = small_recipe("distilbert", tmp_path, *options)
    with pytest.raises(ConfigError, match=r"Unknown dev metric 'mlm'; .*mlm_accuracy"):
        pretrain(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fitting = small_recipe("distilbert", tmp_path, *options, "evaluation.figure=soft")
    assert dev_figures(pretrain(fitting, tmp_path / "run")).keys() == {
        "soft",
        "cosine",
        "mlm_accuracy",
    }


class SecondRank(Ranks):
    """A rank on another machine, whose folder the first rank does not write to."""

    def wait(self) -> None:
        pass


def test_a_rank_that_does_not_see_the_tokens_of_the_first_one_says_so(tmp_path: Path) -> None:
    recipe = small_recipe("bert", tmp_path)
    with pytest.raises(CorpusError, match=r"Rank 1 of 2 does not see .*tokens/train, which rank 0"):
        prepare(
            recipe.data,
            TextTokenizer.from_folder(tmp_path / "vocabulary", 32),
            recipe.segments,
            recipe.mask,
            out=tmp_path / "run",
            seed=0,
            ranks=SecondRank(1, 2),
        )
