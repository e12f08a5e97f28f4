"""The recipe of a comparison, its pieces of work, such as a pre-training, and their times.

Each finished piece is a JSON file, so an interrupted comparison can resume.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Annotated, Literal, TypedDict

from sbert_search.base.files import replace_file
from sbert_search.config import from_mapping, read_toml, to_mapping, unknown_name
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError
from sbert_search.train.pretrain import PretrainRecipe
from sbert_search.train.recipe import load_recipe, shipped_recipes

Measure = Literal["raw", "sts", "pairs", "classify"]
FAMILIES = ("bert", "roberta", "albert", "distilbert", "electra", "deberta")
TEACHER = "bert"  # teacher of distilbert; both have the same seed
_Number = Annotated[int, Bounds(1)]


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

    Example:
        >>> VariantsRecipe(corpus=("corpus.jsonl",), held_out=("texts.jsonl",), tokens=1000).size
        'mini'
    """

    corpus: tuple[str, ...]
    held_out: tuple[str, ...]
    tokens: _Number
    seconds: Annotated[float | None, Bounds(above=0)] = None
    families: tuple[str, ...] = FAMILIES
    size: str = "mini"
    text_field: str | None = None
    vocabulary: str | None = None
    vocab_size: _Number = 8000
    max_len: _Number = 128
    batch: _Number = 32
    readings: _Number = 20
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
        check(self)
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
    """Read a recipe. A path in it may still begin with ``@/``; `with_data` replaces this."""
    return from_mapping(VariantsRecipe, read_toml(Path(path)))


def with_data(recipe: VariantsRecipe, data: str | Path) -> VariantsRecipe:
    """Return a recipe with ``@/`` replaced by the folder of the data sets."""
    values = _replace_data_folder(to_mapping(recipe), f"{Path(data).absolute().as_posix()}/")
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
    """Make the recipe of one pre-training from the shipped recipe of the family.

    All runs share ``tokens``, the folder of the tokenized text. ``teacher`` is a folder for
    distilbert.
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


def _replace_data_folder(value: object, data: str) -> object:
    if isinstance(value, str):
        return value.replace("@/", data)
    if isinstance(value, list):
        return [_replace_data_folder(each, data) for each in value]
    if isinstance(value, dict):
        return {name: _replace_data_folder(each, data) for name, each in value.items()}
    return value


Budget = Literal["tokens", "seconds"]
Part = Literal["pretrain"] | Measure
BUDGETS: tuple[Budget, ...] = ("tokens", "seconds")


class Reading(TypedDict):
    """A checkpoint of a pre-training at which its model can be measured."""

    step: int
    tokens: int
    processor_seconds: float
    figures: dict[str, float]  # losses and metrics of the pre-training on the held-out text


class Result(TypedDict, total=False):
    """The content of a piece's file."""

    seconds: float  # for estimates; 0: figures copied from the piece of the other budget
    figures: dict[str, float]  # of the table, by name
    readings: list[Reading]  # of a pre-training; other pieces lack this key
    step: int  # of the checkpoint that was measured; a pre-training lacks this key
    cpu: str  # model of the CPU


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work: a pre-training, or a measurement of the pre-trained model.

    The measurements are raw (without fine-tuning), sts (after NLI and STSb), pairs (after in-batch
    training on pairs) and classify (as a classifier).
    """

    part: Part
    family: str  # of the model, such as bert
    seed: int
    budget: Budget | None = None  # of the measurement; None: the piece is the pre-training

    @property
    def name(self) -> str:
        """Name of the piece's file."""
        return "-".join([self.family, str(self.seed), *filter(None, [self.budget]), self.part])

    @property
    def training(self) -> Piece:
        """The pre-training that this piece needs."""
        return Piece("pretrain", self.family, self.seed)


class Pieces:
    """The results of finished pieces in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def found(self, piece: Piece) -> Result | None:
        """Return the result of a piece, or None if it is not finished."""
        file = self.folder / f"{piece.name}.json"
        if not file.exists():
            return None
        result: Result = json.loads(file.read_bytes())
        return result

    def keep(self, piece: Piece, result: Result) -> None:
        """Write the result of a piece; the piece then counts as finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(result, indent=1, allow_nan=False) + "\n"
        replace_file(self.folder / f"{piece.name}.json", content.encode())


def plan(recipe: VariantsRecipe, seeds: int) -> list[Piece]:
    """List all pieces, seed by seed: the pre-trainings, then the measurements at each budget."""
    measures: Mapping[Measure, object] = {
        "raw": True,
        "sts": recipe.nli,
        "pairs": recipe.pairs,
        "classify": recipe.classifier,
    }
    pieces = []
    for seed in range(seeds):
        pieces += [Piece("pretrain", family, seed) for family in recipe.ordered]
        pieces += [
            Piece(measure, family, seed, budget)
            for budget in BUDGETS
            for family in recipe.ordered
            for measure, wanted in measures.items()
            if wanted and (budget == "tokens" or measure in recipe.at_seconds)
        ]
    return pieces


def at_budget(
    readings: Mapping[str, list[Reading]], family: str, budget: Budget, seconds: float | None
) -> Reading:
    """Choose the checkpoint of a family at a budget; ``readings`` are in order of their steps.

    For ``tokens``, it is the last one. For ``seconds``, it is the last one within this limit of
    processor time, or the first if all are later. The default limit is the time of the family whose
    pre-training took the least processor time.
    """
    own = readings[family]
    if budget == "tokens":
        return own[-1]
    if seconds is None:
        seconds = min(each[-1]["processor_seconds"] for each in readings.values())
    return [own[0], *(each for each in own if each["processor_seconds"] <= seconds)][-1]


# Guess of the floating-point operations per second of one busy core in bf16. It is used until a
# pre-training is finished.
GUESSED_RATE = 9e10
# Training time per token of each family, relative to BERT. DistilBERT has half the layers but adds
# the forward pass of its teacher. ELECTRA adds a generator.
RELATIVE: Mapping[str, float] = {
    "bert": 1.0,
    "roberta": 1.0,
    "albert": 1.0,
    "distilbert": 0.9,
    "electra": 1.4,
    "deberta": 2.0,
}
# Guess of the time of a measurement, as a share of the time of BERT's pre-training. The guess is
# used until a measurement of the same kind is finished.
GUESSED: Mapping[Part, float] = {"raw": 0.1, "sts": 0.2, "pairs": 0.15, "classify": 0.15}


def operations(tokens: int, layers: int, hidden: int, inner: int, vocab: int) -> float:
    """Floating-point operations of a pre-training: 6 for each weight and token.

    The matrices of a layer have 4 h² + 2 h · inner weights, where h is ``hidden``. The output
    matrix is used only for the masked tokens, which are 15 % of all tokens.
    """
    weights = layers * (4 * hidden**2 + 2 * hidden * inner) + 0.15 * vocab * hidden
    return 6.0 * tokens * weights


def estimator(
    pieces: Sequence[Piece], found: Callable[[Piece], Result | None], operations_of_bert: float
) -> Callable[[Piece], float]:
    """Return a function that estimates the seconds of a piece.

    The estimate is the mean time of the finished pieces of the same kind, scaled from their
    families to the family of the piece by `RELATIVE`. If no piece of this kind is finished, a
    measurement is estimated from the time of BERT's pre-training by `GUESSED`, and a pre-training
    from ``operations_of_bert``.
    """
    spent: dict[str, list[float]] = {}
    for piece in pieces:
        if (result := found(piece)) and result["seconds"] > 0:
            spent.setdefault(piece.part, []).append(result["seconds"] / RELATIVE[piece.family])
    bert = mean(spent.get("pretrain", [operations_of_bert / GUESSED_RATE]))

    def estimate(piece: Piece) -> float:
        known = spent.get(piece.part)
        unit = mean(known) if known else bert * GUESSED.get(piece.part, 1.0)
        return unit * RELATIVE[piece.family]

    return estimate
