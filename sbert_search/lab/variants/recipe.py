"""The recipe of a comparison: corpus, vocabulary, size, budget, fine-tunings and tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sbert_search.config import from_mapping, read_toml, to_mapping, unknown_name
from sbert_search.errors import ConfigError
from sbert_search.train.pretrain import PretrainRecipe
from sbert_search.train.recipe import load_recipe, shipped_recipes

Measure = Literal["raw", "sts", "pairs", "classify"]
FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra", "deberta")
TEACHER = "bert"  # teacher of distilbert; both have the same seed


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """A fine-tuning.

    Attributes:
        recipe: Name of a shipped recipe, or path of a TOML file.
        settings: Overrides of the recipe, such as the training file.
    """

    recipe: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VariantsRecipe:
    """All settings of a comparison. In paths, ``@/`` stands for the folder of the data sets.

    Attributes:
        corpus: Sources of the text that every family is trained on.
        held_out: Sources of the text for the held-out loss.
        tokens: Tokens that every family is trained on.
        seconds: Limit in seconds of processor time; every run is also measured at its last
            checkpoint within this limit. None: the time that the fastest family of the same seed
            needs for ``tokens``.
        families: Families to compare; distilbert needs bert, its teacher.
        size: Size of the models, as in the shipped recipes of pre-training: tiny, mini, small or
            base.
        text_field: Field that holds the text; None: detected.
        vocabulary: Folder of a tokenizer; None: a tokenizer is trained on the corpus.
        vocab_size: Size of the vocabulary, if a tokenizer is trained.
        max_len: Largest number of tokens of a training example.
        batch: Number of examples of a training step.
        readings: Approximate number of checkpoints of a run, one of which is measured at
            ``seconds``.
        settings: Overrides of every pre-training. By default the learning rate stays constant
            after the warm-up, so that a run can be measured at any step.
        family_settings: Further overrides by family.
        nli: Fine-tuning on labelled pairs; None: no such fine-tuning.
        stsb: Fine-tuning on scored pairs, from the result of ``nli``; None: no such fine-tuning.
        pairs: In-batch training on pairs, after which retrieval is measured again; None: no such
            training.
        classifier: Training of a classifier of texts; None: no such training.
        at_seconds: Measurements that are also made at ``seconds``: raw, sts (after NLI and STSb),
            pairs or classify.
        sts: Test tasks or files of scored pairs.
        retrieval: Test tasks or BEIR folders.
        classify: Test tasks or files of labelled texts, for ``classifier``.
    """

    corpus: tuple[str, ...]
    held_out: tuple[str, ...]
    tokens: int
    seconds: float | None = None
    families: tuple[str, ...] = FAMILIES
    size: str = "mini"
    text_field: str | None = None
    vocabulary: str | None = None
    vocab_size: int = 8000
    max_len: int = 128
    batch: int = 32
    readings: int = 20
    settings: tuple[str, ...] = ()
    family_settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nli: Tuning | None = None
    stsb: Tuning | None = None
    pairs: Tuning | None = None
    classifier: Tuning | None = None
    at_seconds: tuple[Measure, ...] = ("raw", "sts", "pairs", "classify")
    sts: tuple[str, ...] = ()
    retrieval: tuple[str, ...] = ()
    classify: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("tokens", "vocab_size", "max_len", "batch", "readings"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.seconds is not None and self.seconds <= 0:
            raise ConfigError(f"seconds is {self.seconds}; it must be above 0.")
        if not self.families:
            raise ConfigError(f"families is empty; name at least one of {', '.join(FAMILIES)}.")
        for family in (*self.families, *self.family_settings):
            if family not in FAMILIES:
                raise ConfigError(unknown_name(family, family, FAMILIES, "family"))
        if "distilbert" in self.families and TEACHER not in self.families:
            raise ConfigError(f"families has distilbert, but not {TEACHER}, its teacher; add it.")
        if self.stsb is not None and self.nli is None:
            raise ConfigError("stsb starts from the result of nli; add a table [nli].")

    @property
    def ordered(self) -> list[str]:
        """The families in a fixed order, in which distilbert follows bert, its teacher."""
        return [family for family in FAMILIES if family in self.families]


def load_variants(path: str | Path) -> VariantsRecipe:
    """Read a recipe. A path in it may still begin with ``@/``; `with_data` replaces this.

    Raises:
        ConfigError: The file cannot be read, or a setting is unknown, missing or invalid.
    """
    return from_mapping(VariantsRecipe, read_toml(Path(path)))


def with_data(recipe: VariantsRecipe, data: str | Path) -> VariantsRecipe:
    """Return a recipe with ``@/`` replaced by the folder of the data sets."""
    values = _placed(to_mapping(recipe), f"{Path(data).absolute().as_posix()}/")
    assert isinstance(values, dict)
    return from_mapping(VariantsRecipe, values)


def pretrain_recipe(
    recipe: VariantsRecipe,
    family: str,
    seed: int,
    *,
    vocabulary: Path,
    tokens: Path,
    teacher: Path | None = None,
    device: str = "auto",
) -> PretrainRecipe:
    """Make the recipe of one pre-training.

    Args:
        recipe: The comparison.
        family: Name of the family; a shipped recipe has the same name.
        seed: Seed of the run.
        vocabulary: Folder of the tokenizer.
        tokens: Folder of the tokenized text, which all runs share.
        teacher: Folder of the teacher, for distilbert.
        device: Device of the training.

    Raises:
        ConfigError: A setting is unknown or invalid.
    """
    assert family in shipped_recipes("pretrain")
    every = max(1, recipe.tokens // (recipe.batch * recipe.max_len * recipe.readings))
    settings = [
        *(f"size={recipe.size}", f"seed={seed}", f"device={device}"),
        f"budget.tokens={recipe.tokens}",
        *(f"batching.size={recipe.batch}", f"segments.max_len={recipe.max_len}"),
        *(f"data.train={_toml(recipe.corpus)}", f"data.dev={_toml(recipe.held_out)}"),
        *(f"data.folder={_toml(str(tokens))}", f"checkpoint.every={every}"),
        *(f"evaluation.every={every}", "checkpoint.keep=1000000"),
        *("schedule.kind=constant", "schedule.warmup=0.06"),
    ]
    if recipe.text_field is not None:
        settings.append(f"data.text_field={_toml(recipe.text_field)}")
    if teacher is None:
        settings.append(f"tokenizer={_toml(str(vocabulary))}")
    else:
        settings.append(f"teacher={_toml(str(teacher))}")
    settings += [*recipe.settings, *recipe.family_settings.get(family, ())]
    return load_recipe(PretrainRecipe, "pretrain", family, settings)


def _toml(value: object) -> str:
    """Format a string or a list of strings as TOML.

    Characters outside ASCII are not escaped: JSON escapes those above U+FFFF as surrogate pairs,
    which TOML does not allow.
    """
    return json.dumps(value, ensure_ascii=False)


def _placed(value: object, data: str) -> object:
    """Replace ``@/`` by the data folder in all strings of a recipe."""
    if isinstance(value, str):
        return value.replace("@/", data)
    if isinstance(value, list):
        return [_placed(each, data) for each in value]
    if isinstance(value, dict):
        return {name: _placed(each, data) for name, each in value.items()}
    return value
