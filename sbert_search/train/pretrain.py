"""Pre-train an encoder: build model, objective and data from a recipe, then run the loop."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from sbert_search.base.distributed import Ranks
from sbert_search.base.progress import note, warn
from sbert_search.base.seed import seed_all
from sbert_search.errors import ConfigError
from sbert_search.models.encoder.config import EncoderConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.layouts import to_settings
from sbert_search.models.encoder.weights import Checkpoint, read_checkpoint
from sbert_search.models.initialization import extend_vocabulary, make_student
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.pretraining import MaskedLanguageModel
from sbert_search.models.replaced_token_detection import GENERATOR, ReplacedTokenModel
from sbert_search.text.tokens.masking import MaskSettings
from sbert_search.text.tokens.segments import SegmentSettings
from sbert_search.text.tokens.specials import SpecialTokens
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.loop.loop import Result, TrainConfig
from sbert_search.train.loop.schedule import (
    DevMetrics,
    EvaluationConfig,
    require_direction,
    require_metric,
)
from sbert_search.train.pretraining_data import (
    DataConfig,
    dev_evaluation,
    dev_losses,
    dev_metric_names,
    make_batches,
    prepare,
)
from sbert_search.train.pretraining_objectives import (
    DistilledObjective,
    MaskedObjective,
    ObjectiveConfig,
    PretrainingObjective,
    ReplacedObjective,
)
from sbert_search.train.run import Training, start_run


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainConfig):
    """All settings of a pre-training run.

    Attributes:
        size: Size of the encoder: ``tiny``, ``mini``, ``small``, ``base`` or another table
            ``[sizes.NAME]`` of the recipe, whose settings it selects. None: none of them.
        tokenizer: Folder of the tokenizer; None: that of ``init_from``. With ``init_from``, its
            vocabulary must extend the model's. A student gets the tokenizer of ``teacher``.
        init_from: Folder or name of the model to start from; None: new weights, or for a student
            those of ``teacher``.
        teacher: Folder or name of the teacher, for the objective ``distilled``.
        model: Shape of a new encoder or student; the vocabulary size always comes from the
            tokenizer.
        generator: Shape of the generator, for the objective ``replaced``.
        mask_decoder: Whether a new model gets DeBERTa's enhanced mask decoder, for the objective
            ``masked``. With ``init_from``, the model has it if the checkpoint does.
        data: The text.
        segments: How the text is cut into examples.
        mask: Which tokens are masked.
        objective: The objective and its weights.

    Example:
        >>> load_recipe(PretrainRecipe, "pretrain", "bert", ["size=mini"]).model.layers
        4
    """

    size: str | None = None
    tokenizer: Path | None = None
    init_from: str | Path | None = None
    teacher: str | None = None
    model: EncoderConfig = field(default_factory=lambda: EncoderConfig(pooler=True))
    generator: EncoderConfig | None = None
    mask_decoder: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    mask: MaskSettings = field(default_factory=MaskSettings)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    evaluation: EvaluationConfig = field(
        default_factory=lambda: EvaluationConfig(figure="mlm", higher_is_better=False)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.objective.kind
        for name, user in (("generator", "replaced"), ("teacher", "distilled")):
            is_set = getattr(self, name) is not None
            if kind == user and not is_set:
                raise ConfigError(f"The objective {kind!r} needs a {name}; set {name}.")
            if kind != user and is_set:
                raise ConfigError(
                    f"{name} has no effect with the objective {kind!r}; remove {name}, or set "
                    f"objective.kind={user}."
                )
        from_teacher = ("tokenizer", "init_from", "mask_decoder") if kind == "distilled" else ()
        for name in filter(self.__getattribute__, from_teacher):
            raise ConfigError(
                f"{name} = {getattr(self, name)} has no effect with the objective 'distilled', "
                f"whose student gets tokenizer and layers of teacher; remove {name}."
            )
        if self.segments.pairs and kind != "masked":
            raise ConfigError(
                f"segments.kind is {self.segments.kind!r}, but the objective {kind!r} has no "
                "loss for pairs; use --set segments.kind=full-sentences, or document-sentences."
            )


PretrainedModel = MaskedLanguageModel | ReplacedTokenModel


def pretrain(
    recipe: PretrainRecipe, out: Path, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Pre-train an encoder on raw text.

    Args:
        recipe: All settings.
        out: Folder of the run; holds the tokens too, unless ``data.folder`` is set.
        resume: Resume from the newest checkpoint in ``out``.
        allow_inexact: As for `train.loop.loop.train`.

    Returns:
        How the run ended. The best model, or the last one if there are no dev metrics, is in
        ``out/model``. transformers can load this folder, and the folder ``model`` of each
        checkpoint, as the class that its ``config.json`` names. The training of a bi-encoder can
        start from each of these folders.

    Raises:
        ConfigError: Settings contradict each other.
        CorpusError: The text cannot be read, or is too short.
        ModelError: A model or tokenizer cannot be loaded, or the two do not match.
        TrainingError: As for `train.loop.loop.train`.
        CheckpointError: As for `train.loop.loop.train`.

    Example:
        >>> few = ["budget={steps=2}", "size=tiny", "tokenizer=tokens", "data.train=corpus.jsonl"]
        >>> recipe = load_recipe(PretrainRecipe, "pretrain", "bert", few)
        >>> pretrain(recipe, Path("run")).stopped
        'budget'
    """
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
        return run.train(_training(recipe, out, run.ranks))


def _training(recipe: PretrainRecipe, out: Path, ranks: Ranks) -> Training:
    model, objective = build(recipe)
    data, has_segments = recipe.data, model.encoder.config.token_type_vocab > 1
    if data.dev is not None or data.held_out > 0:
        # Checked before the text is tokenised, which can take long.
        names = dev_metric_names(objective)
        require_metric(recipe.evaluation, names)
        require_direction(recipe.evaluation, names, dev_losses(objective))
    corpora = prepare(
        data,
        model.tokenizer,
        recipe.segments,
        recipe.mask,
        out=out,
        seed=recipe.seed,
        ranks=ranks,
    )
    dev: DevMetrics | None = None
    if corpora.dev is not None:
        dev = dev_evaluation(corpora.dev, objective, data.dev_examples, segments=has_segments)
    batches = make_batches(
        corpora.train,
        recipe.batching,
        objective.units,
        segments=has_segments,
        seed=recipe.seed,
        teacher=_teacher_sha256(recipe),
    )
    return Training(
        kind="pretrain",
        model=model,
        objective=objective,
        batches=batches,
        save_model=model.save,
        dev=dev,
    )


def _teacher_sha256(recipe: PretrainRecipe) -> str:
    if recipe.teacher is None:
        return ""
    return read_folder(resolve_model(recipe.teacher).path).weights_sha256()


def build(recipe: PretrainRecipe) -> tuple[PretrainedModel, PretrainingObjective]:
    """Make the model and the objective of a recipe; random weights depend only on its seed."""
    seed_all(recipe.seed, "init")
    objective: PretrainingObjective
    model: PretrainedModel
    if recipe.objective.kind == "distilled":
        teacher = MaskedLanguageModel.load(resolve_model(recipe.teacher).path)
        model = make_student(teacher, _shape_for(recipe.model, teacher.tokenizer))
        objective = DistilledObjective(teacher, recipe.objective)
    elif recipe.objective.kind == "replaced":
        model = _replaced_model(recipe)
        objective = ReplacedObjective(
            recipe.objective.replaced_weight, recipe.objective.replaced_at
        )
    else:
        model = _masked_model(recipe)
        kind = recipe.segments.kind
        objective = MaskedObjective(kind if kind in ("nsp", "sop") else None)
    _check_length(recipe, model.encoder.config)
    if recipe.init_from is not None:
        _warn_of_ignored(recipe, model)
    return model, objective


def _masked_model(recipe: PretrainRecipe) -> MaskedLanguageModel:
    pairs = recipe.segments.pairs
    if recipe.init_from is None:
        tokenizer = _required_tokenizer(recipe)
        encoder = Encoder(_shape_for(recipe.model, tokenizer))
        return MaskedLanguageModel(
            encoder, tokenizer, pairs=pairs, mask_decoder=recipe.mask_decoder
        )
    checkpoint, tokenizer = _start(recipe, recipe.init_from)
    model = MaskedLanguageModel.on_checkpoint(checkpoint, tokenizer, pairs=pairs)
    if left := model.left_out(checkpoint.head):
        warn(
            f"The head of {recipe.init_from} with {left[0]} is left out: this run trains masked "
            "words"
            + (" and pairs." if pairs else " only; segments.kind=nsp or sop also trains pairs.")
        )
    return model


def _replaced_model(recipe: PretrainRecipe) -> ReplacedTokenModel:
    assert recipe.generator is not None
    if recipe.init_from is None:
        tokenizer = _required_tokenizer(recipe)
        encoder = Encoder(_shape_for(recipe.model, tokenizer))
        return ReplacedTokenModel(encoder, _shape_for(recipe.generator, tokenizer), tokenizer)
    checkpoint, tokenizer = _start(recipe, recipe.init_from)
    generator = replace(
        recipe.generator,
        vocab_size=checkpoint.encoder.config.vocab_size,
        pad_id=checkpoint.encoder.config.pad_id,
    )
    model = ReplacedTokenModel(checkpoint.encoder, generator, tokenizer)
    model.take_head(checkpoint)
    folder = resolve_model(recipe.init_from).path / GENERATOR
    if not folder.is_dir():
        warn(f"{recipe.init_from} has no folder {GENERATOR!r}, so the generator begins anew.")
    else:
        model.take_generator(_start(recipe, str(folder))[0])
    return model


def _required_tokenizer(recipe: PretrainRecipe) -> TextTokenizer:
    if recipe.tokenizer is None:
        raise ConfigError(
            "A new model needs a tokenizer: --set tokenizer=FOLDER. "
            "`sbert-search tokenizer train` makes one."
        )
    return TextTokenizer.from_folder(recipe.tokenizer, recipe.model.max_positions)


def _start(recipe: PretrainRecipe, init_from: str | Path) -> tuple[Checkpoint, TextTokenizer]:
    """Read the model to start from, with embeddings for the tokens added to its vocabulary."""
    folder = read_folder(resolve_model(init_from).path)
    checkpoint, old = read_checkpoint(folder.transformer_path), load_tokenizer(folder)
    if recipe.tokenizer is None:
        return checkpoint, old
    new = TextTokenizer.from_folder(recipe.tokenizer, old.max_len)
    if new.backend.get_vocab() == old.backend.get_vocab():
        return checkpoint, old
    checkpoint = extend_vocabulary(checkpoint, old, new)
    added = new.vocab_size - old.vocab_size
    note(
        f"{added:,} tokens are new to the model. The embedding of a new token starts as the mean "
        "of the embeddings of the old tokens that the model's tokenizer splits it into."
    )
    return checkpoint, new


def _shape_for(config: EncoderConfig, tokenizer: TextTokenizer) -> EncoderConfig:
    """Set what an encoder takes from its tokenizer; check that its configuration can be saved."""
    special = SpecialTokens.of(tokenizer)
    shape = replace(
        config,
        vocab_size=tokenizer.vocab_size,
        pad_id=special.pad_id,
        # In RoBERTa's table, the first position is row ``pad_id + 1``.
        position_offset=special.pad_id + 1 if config.position_offset else 0,
    )
    to_settings(shape)  # raises ConfigError if ``config.json`` cannot express it
    return shape


def _warn_of_ignored(recipe: PretrainRecipe, model: PretrainedModel) -> None:
    # The values of settings that the recipe leaves out: without a table ``model``, those of
    # EncoderConfig(pooler=True); with such a table, those of EncoderConfig().
    unset, own = (EncoderConfig(pooler=True), EncoderConfig()), model.encoder.config
    ignored = [
        f"model.{name} = {getattr(recipe.model, name)} (the model has {getattr(own, name)})"
        for name in (f.name for f in fields(EncoderConfig))
        if getattr(recipe.model, name) not in (getattr(each, name) for each in (*unset, own))
    ]
    if recipe.mask_decoder and getattr(model, "mask_decoder", None) is None:
        ignored.append("mask_decoder = True (the model has none)")
    if ignored:
        warn(
            f"These settings are only for new models and are ignored, since init_from is "
            f"{recipe.init_from}: {', '.join(ignored)}. Remove them, or remove init_from."
        )


def _check_length(recipe: PretrainRecipe, config: EncoderConfig) -> None:
    if config.position_embeddings and recipe.segments.max_len > config.max_positions:
        raise ConfigError(
            f"segments.max_len is {recipe.segments.max_len}, but the encoder has "
            f"{config.max_positions} positions; lower it, or for a new encoder raise "
            "model.max_positions."
        )
