"""Train a sentence encoder with the settings of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sbert_search.base.distributed import Ranks
from sbert_search.base.files import remove_tree
from sbert_search.base.progress import note, progress, warn
from sbert_search.base.seed import seed_all
from sbert_search.embed.embedder import Embedder
from sbert_search.errors import CheckpointError, ConfigError
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.config import PRESETS
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.heads import Dense, Normalize
from sbert_search.models.initialization import keep_layers, linear_map
from sbert_search.models.loading.folder import ModelFolder, load_tokenizer, read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.models.static_model import SentenceModel, StaticModel
from sbert_search.text.labelled.pairs import dissimilar_first
from sbert_search.text.tokens.tokenizer import TextTokenizer
from sbert_search.train.bi_encoder_losses import (
    BINARY,
    BatchObjective,
    LossConfig,
    RowObjective,
    Siamese,
)
from sbert_search.train.data.examples import FORMS_BY_TARGET, DataConfig, Example, read_examples
from sbert_search.train.data.left_out import without_copies, without_false_negatives
from sbert_search.train.data.mining import (
    MiningConfig,
    embed_by_teacher,
    mine_negatives,
    score_by_teacher,
)
from sbert_search.train.data.text_dataset import (
    RowTokens,
    TextBatches,
    TextRows,
    arrange,
    check_targets,
)
from sbert_search.train.data.token_table import outputs_of
from sbert_search.train.dev_metrics import dev_evaluator
from sbert_search.train.loop.checkpoint import checkpoints, newest_checkpoint
from sbert_search.train.loop.loop import Result, TrainConfig
from sbert_search.train.loop.schedule import DevMetrics
from sbert_search.train.run import MODEL, Training, recipe_changes, start_run

STATIC = "static"  # in place of a model: a table with a row for each token
# Texts on which the dense layer into the space of a teacher is fitted, and those of one pass.
_FITTED_ON, _FITTED_AT_ONCE = 4096, 512
FIRST = "first"  # subfolder of the preliminary run, `BiEncoderRecipe.first`


@dataclass(frozen=True, kw_only=True)
class BiEncoderRecipe(TrainConfig):
    """All settings of a training run of a sentence encoder.

    Example:
        >>> changes = ["data.train=sts.jsonl", "optim.lr=3e-5"]
        >>> load_recipe(BiEncoderRecipe, "bi-encoder", "stsb", changes).optim.lr
        3e-05
    """

    data: DataConfig
    loss: LossConfig
    # Folder or name of a bi-encoder or encoder; or for new weights, a preset, or static: a table.
    model: str | Path = ""
    # Folder or name of a model with a tokenizer, for a preset. For static, the folder of a
    # tokenizer; None: that of the teacher.
    tokenizer: str | Path | None = None
    pooling: tuple[str, ...] | None = None  # None: as in the model; mean for an encoder alone
    max_len: int | None = None  # maximum tokens of a text; None: as in the model
    # Number of the model's layers to start with, evenly spaced, or a list of them, from 0; None:
    # all. Without a model, layers of a teacher of embeddings.
    layers: int | tuple[int, ...] | None = None
    # Whether embeddings are normalised to length 1; None: if the model, or the teacher whose
    # embeddings it learns, does so.
    unit_length: bool | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; added to those of the model
    prompt_names: tuple[str, ...] = ()  # of the 1st, 2nd, ... text of a row; (): the default prompt
    mining: MiningConfig = field(default_factory=MiningConfig)  # adds hard negatives
    # Model whose embeddings or scores are the targets. It embeds the first text of each row,
    # with the teacher's own prompt of the same name; the student gets a dense layer if it has
    # another number of dimensions.
    teacher: str | None = None
    first: BiEncoderRecipe | None = None  # preliminary run; this run starts from its model

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = self.loss.kind
        if self.mining.negatives and kind.most < 2 + self.mining.negatives:
            raise ConfigError(
                f"mining.negatives is {self.mining.negatives}, but the loss {self.loss.name} takes "
                f"{kind.describe()}. Use loss.name=mnrl, or set mining.negatives=0."
            )
        if kind.teacher and not self.teacher:
            raise ConfigError(
                f"The loss {self.loss.name} learns from a {kind.teacher}; set teacher=MODEL."
            )
        if self.teacher and not kind.teacher:
            raise ConfigError(
                f"teacher is {self.teacher}, but the loss {self.loss.name} has no teacher; use "
                "another loss.name, such as embedding_mse, or remove teacher."
            )


def train_bi_encoder(
    recipe: BiEncoderRecipe, out: Path, /, *, resume: bool = False, allow_inexact: bool = False
) -> Result:
    """Train a sentence encoder.

    The model is written to ``out/model``, a sentence-transformers folder with a card. With dev
    data, this is the model with the best dev metric; without dev data, the model of the last step.

    Args:
        recipe: All settings.
        out: Folder of the run. The preliminary run ``recipe.first`` uses ``out/first``. It is
            skipped if ``out/first`` has a finished model that was made with the settings and data
            of ``recipe.first``.
        resume: Resume from the newest checkpoint in ``out``. If only the preliminary run has a
            checkpoint, resume the preliminary run.
        allow_inexact: As for `train.loop.loop.train`. Also use a finished preliminary model that
            was made with other settings or data.

    Returns:
        How the run ended.

    Raises:
        ConfigError: The loss does not fit the data, a setting has an invalid value, or the run
            would write over a file or folder that it reads.
        CorpusError: A file, a column or a row cannot be used; the message names it.
        ModelError: The model or the teacher cannot be loaded.
        TrainingError: A loss or gradient is not finite, a row does not fit in memory, processes of
            the run differ or end, all rows have the same target, all dev rows have the same score,
            or the loss has a teacher and rows have different numbers of texts.
        CheckpointError: There is no usable checkpoint to resume from, ``out`` holds another run, or
            a write failed.

    Example:
        >>> few = ["budget={steps=2}", "max_len=24", "model=my-model", "data.train=sts.jsonl"]
        >>> recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "stsb", few)
        >>> train_bi_encoder(recipe, Path("run")).stopped
        'budget'

        A student of one layer that learns the embeddings of a teacher:

        >>> few = ["budget={steps=2}", "layers=1", "teacher=my-model", "data.train=docs.jsonl"]
        >>> recipe = load_recipe(BiEncoderRecipe, "bi-encoder", "distill", few)
        >>> train_bi_encoder(recipe, Path("small")).stopped
        'budget'
    """
    _check_form(recipe)
    _check_mining(recipe)
    with start_run(recipe, out, resume=resume, allow_inexact=allow_inexact) as run:
        if run.resume and recipe.first is not None:
            run.resume = _begun(out, run.ranks)
        return run.train(_training(recipe, out, run.ranks, allow_inexact=allow_inexact))


def _begun(out: Path, ranks: Ranks) -> bool:
    """Whether a resumed run has a checkpoint of its own, not only its preliminary run."""
    states = [float(bool(checkpoints(folder))) for folder in (out, out / FIRST)]
    begun, first = ranks.from_first(states)
    if not begun and not first:
        newest_checkpoint(out)  # raises the error
    return bool(begun)


def _training(recipe: BiEncoderRecipe, out: Path, ranks: Ranks, *, allow_inexact: bool) -> Training:
    model_name = recipe.model
    if recipe.first is not None:
        model_name = _train_first(recipe, out, ranks, allow_inexact=allow_inexact)
    seed_all(recipe.seed, "init")
    data, loss, bi_encoder = recipe.data, recipe.loss, _start(replace(recipe, model=model_name))
    teacher = _embedding_teacher(recipe)
    _check_sizes(loss, (teacher or bi_encoder).dim)
    teach = partial(_with_teacher_targets, recipe, teacher, ranks)
    files = [read_examples(path, data, loss.kind.target) for path in data.files]
    if data.form == "texts" and loss.kind.fewest == 1:
        # Such rows have their text twice, for losses that compare two texts.
        files = [[replace(row, texts=row.texts[:1]) for row in rows] for rows in files]
    _check_text_counts(files, data, loss)
    described = bi_encoder.describe()
    prompts = [described.prompt(name) for name in recipe.prompt_names or (None,)]
    if recipe.mining.negatives:
        mine = partial(_mine, files, recipe, bi_encoder, prompts, model_name, out / "mining", ranks)
        files = ranks.first_then_others(mine)
    classes = _classes(files, recipe) if loss.kind.target == "label" else ()
    rows = arrange(files, classes)
    tokens = RowTokens.of(rows, bi_encoder.tokenizer, prompts, ranks)
    if loss.kind.by_class:
        rows, tokens = without_copies(rows, tokens)
    elif loss.kind.teacher is None:
        rows, tokens = without_false_negatives(rows, tokens, loss.kind.fewest)
    check_targets(rows, classes, loss.name, by_class=loss.kind.by_class)
    rows = teach(rows)
    if isinstance(bi_encoder, StaticModel):
        rows, tokens = _fill_table(bi_encoder, rows, tokens)
    elif teacher is not None:
        _enter_space(bi_encoder, rows, tokens, recipe.unit_length)
    classifier: nn.Linear | None = None  # of the softmax loss
    if loss.name == "softmax":
        classifier = nn.Linear(len(loss.concatenation) * bi_encoder.dim, len(classes))
    batches = TextBatches(
        rows,
        tokens,
        recipe.batching,
        seed=recipe.seed,
        summed=None if loss.kind.in_batch else loss.name,
        no_duplicates=loss.kind.no_duplicates,
        by_class=loss.kind.by_class,
        weights=data.weights,
    )
    dev: DevMetrics | None = None
    if data.dev is not None:
        dev = dev_evaluator(data.dev, data, loss, classes, bi_encoder, prompts, teach)
    return Training(
        kind="bi-encoder",
        model=Siamese(bi_encoder, classifier),
        objective=BatchObjective(loss) if loss.kind.in_batch else RowObjective(loss),
        batches=batches,
        save_model=bi_encoder.save,
        dev=dev,
        files=data.files,
        n_rows=len(rows.text_ids),
    )


def _start(recipe: BiEncoderRecipe) -> SentenceModel:
    """Open the model to train, and refuse or warn of a loss that does not fit it."""
    if recipe.model == STATIC and not Path(STATIC).is_dir():
        return _fresh_table(recipe)
    model, loss = open_model(recipe), recipe.loss
    if model.encoder.pooler is not None:
        # Sentence embeddings do not use BERT's pooler, so it would get no gradient.
        model.encoder.pooler.requires_grad_(False)
    normalizes = any(isinstance(part, Normalize) for part in model.head)
    if loss.name == "softmax" and recipe.unit_length is None and normalizes:
        warn(
            "The model scales its embeddings to norm 1, and the softmax loss over such embeddings "
            "can make the model worse: see docs/training.md. Use unit_length=false or the recipe "
            "mnrl-nli."
        )
    return model


def _mine(
    files: Sequence[Sequence[Example]],
    recipe: BiEncoderRecipe,
    bi_encoder: SentenceModel,
    prompts: Sequence[str],
    model: str | Path,
    folder: Path,
    ranks: Ranks,
) -> list[list[Example]]:
    changed = (recipe.pooling, recipe.max_len, recipe.unit_length, recipe.prompts or None)
    if recipe.mining.model is None and any(setting is not None for setting in changed):
        # Mining loads its model from a folder. The folder of the original model lacks the changed
        # settings, so the changed model is saved to another folder.
        model = str(folder / MODEL)
        if ranks.first:
            remove_tree(folder / MODEL)
            bi_encoder.save(folder / MODEL)
    every = [example for examples in files for example in examples]
    return [
        mine_negatives(
            examples,
            recipe.mining,
            model,
            folder,
            device=recipe.device,
            tokenizer=bi_encoder.tokenizer,
            prompts=(prompts[0], prompts[min(1, len(prompts) - 1)]),
            seed=recipe.seed,
            others=every,
        )
        for examples in files
    ]


def open_model(recipe: BiEncoderRecipe) -> BiEncoder:
    """Load the model to start from, or make one with a preset's shape and new weights."""
    name, learns = recipe.model, recipe.loss.kind.teacher == "bi-encoder"
    if not name and learns and recipe.layers is not None and recipe.teacher:
        name = recipe.teacher
    if not name:
        or_layers = ", or layers=2 to start with layers of the teacher" if learns else ""
        raise ConfigError(
            f"No model to start from; set it with --set model=FOLDER_OR_NAME{or_layers}."
        )
    model = _fresh(recipe) if _is_preset(name) else BiEncoder.from_folder(_encoder_folder(name))
    if recipe.layers is not None:
        model.encoder = keep_layers(model.encoder, recipe.layers).eval()
    model.prompts |= recipe.prompts
    if all(option is None for option in (recipe.pooling, recipe.max_len, recipe.unit_length)):
        model.require_savable()
        return model
    head = [part for part in model.head if isinstance(part, (Dense, Normalize))]
    if recipe.unit_length is not None:
        head = [part for part in head if not isinstance(part, Normalize)]
        head += [Normalize()] * recipe.unit_length
    changed = BiEncoder(
        model.encoder,
        _with_max_len(model.tokenizer, recipe.max_len),
        pooling=recipe.pooling or model.pooling,
        head=head,
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity=model.similarity,
        truncate_dim=model.truncate_dim,
    )
    changed.require_savable()  # fails now instead of at the first checkpoint
    return changed


def _encoder_folder(name: str | Path) -> ModelFolder:
    folder = read_folder(resolve_model(name).path)
    if any(module.kind == "StaticEmbedding" for module in folder.description.modules):
        raise ConfigError(
            f"{name} is a static model, a table without an encoder, so no training can start from "
            "it or its layers. Set model to an encoder; model=static makes a new table."
        )
    return folder


def _is_preset(model: str | Path) -> bool:
    return model in PRESETS and not Path(model).is_dir()


def _fresh(recipe: BiEncoderRecipe) -> BiEncoder:
    if recipe.tokenizer is None:
        raise ConfigError(
            f"{recipe.model} is a preset without a tokenizer; set tokenizer=MODEL, a folder or "
            f"name of a model with one. To load a model folder instead, set model to its path."
        )
    tokenizer = load_tokenizer(read_folder(resolve_model(recipe.tokenizer).path))
    shape = replace(PRESETS[str(recipe.model)], vocab_size=tokenizer.vocab_size)
    return BiEncoder(
        Encoder(shape), _with_max_len(tokenizer, min(tokenizer.max_len, shape.max_positions))
    )


def _fresh_table(recipe: BiEncoderRecipe) -> StaticModel:
    """Make an empty table of the teacher's dimension for the tokens of a tokenizer."""
    if recipe.teacher is None or recipe.loss.kind.teacher != "bi-encoder":
        raise ConfigError(
            "A static model learns the vectors of a teacher; set teacher=MODEL and "
            "loss.name=embedding_mse."
        )
    for name in ("pooling", "prompts", "layers"):
        if getattr(recipe, name):
            raise ConfigError(f"A static model has no {name}; remove it.")
    teacher = resolve_model(recipe.teacher).path
    if recipe.tokenizer is None:
        tokenizer = load_tokenizer(read_folder(teacher))
    else:
        tokenizer = TextTokenizer.from_folder(Path(recipe.tokenizer), 512)
    # Without `max_len`, texts are read whole: a table has no positions.
    tokenizer = tokenizer.unframed(recipe.max_len) if recipe.max_len else tokenizer.unframed()
    head = [Normalize()] * bool(recipe.unit_length)
    return StaticModel(tokenizer, Embedder(teacher, device=recipe.device).dim, head=head)


def _with_max_len(tokenizer: TextTokenizer, max_len: int | None) -> TextTokenizer:
    if max_len is None:
        return tokenizer
    return TextTokenizer(tokenizer.backend, max_len, folder=tokenizer.folder)


def _train_first(recipe: BiEncoderRecipe, out: Path, ranks: Ranks, *, allow_inexact: bool) -> str:
    """Run the preliminary training, unless its model exists; return the folder of its model."""
    assert recipe.first is not None
    done = out / FIRST / MODEL
    # All ranks use the answer of rank 0. If each rank looked for itself, a slow rank could already
    # find files that rank 0 has written since.
    states = [float(done.is_dir()), float(bool(checkpoints(out / FIRST)))]
    finished, begun = map(bool, ranks.from_first(states))
    own = recipe.first
    first = replace(
        own,
        model=recipe.model,
        tokenizer=recipe.tokenizer,
        pooling=recipe.pooling if own.pooling is None else own.pooling,
        max_len=recipe.max_len if own.max_len is None else own.max_len,
        unit_length=recipe.unit_length if own.unit_length is None else own.unit_length,
        prompts={**recipe.prompts, **own.prompts},
        prompt_names=own.prompt_names or recipe.prompt_names,
        seed=recipe.seed,
        device=recipe.device,
        precision=recipe.precision,
    )
    if finished:
        if changed := recipe_changes(done, first, first.data.files):
            problem = f"{done} was made with other settings or data: {'; '.join(changed)}."
            if not allow_inexact:
                raise CheckpointError(
                    f"{problem} Restore them, train into another folder, or use the model with "
                    "--allow-inexact (allow_inexact=True)."
                )
            warn(problem)
        note(f"{done} exists; the preliminary run is skipped.")
    else:
        try:
            train_bi_encoder(first, out / FIRST, resume=begun, allow_inexact=allow_inexact)
        except KeyboardInterrupt:
            note(f"This was the preliminary run. For both runs, repeat the command for {out}.")
            raise
    return str(done)


def _check_form(recipe: BiEncoderRecipe) -> None:
    loss, form = recipe.loss, recipe.data.form
    if form not in FORMS_BY_TARGET[loss.kind.target]:
        raise ConfigError(
            f"The loss {loss.name} takes {loss.kind.describe()}, and data.form = {form!r} reads no "
            f"{loss.kind.target}. Use another loss.name, or data.form = "
            f"{' or '.join(FORMS_BY_TARGET[loss.kind.target])}."
        )


def _check_mining(recipe: BiEncoderRecipe) -> None:
    """Refuse to mine negatives with the untrained weights of a preset, or for rows of one text."""
    if recipe.mining.negatives and recipe.data.form == "classes":
        raise ConfigError(
            "data.form is classes, whose rows have one text; negatives are mined for rows with a "
            "positive. Set mining.negatives=0."
        )
    mines = recipe.mining.negatives and recipe.mining.model is None and recipe.first is None
    if mines and _is_preset(recipe.model):
        raise ConfigError(
            f"{recipe.model} is a preset with new weights, which cannot find hard negatives. Set "
            "mining.model to a trained model, or set mining.negatives=0."
        )


def _check_sizes(loss: LossConfig, dim: int) -> None:
    if max(loss.matryoshka, default=0) > dim:
        raise ConfigError(
            f"loss.matryoshka is {list(loss.matryoshka)}, but the embeddings of the model have "
            f"{dim} dimensions; leave out the larger sizes."
        )


def _check_text_counts(
    files: Sequence[Sequence[Example]], data: DataConfig, loss: LossConfig
) -> None:
    kind = loss.kind
    for examples in files:
        bad = next((e for e in examples if not kind.fewest <= len(e.texts) <= kind.most), None)
        if bad is not None:
            raise ConfigError(
                f"The loss {loss.name} takes {kind.describe()}, but {bad.source}, read with "
                f"data.form = {data.form!r}, has {len(bad.texts)} texts. Use another loss.name or "
                "data.form."
            )


def _classes(files: Sequence[Sequence[Example]], recipe: BiEncoderRecipe) -> tuple[str, ...]:
    labels = {str(example.target) for examples in files for example in examples}
    if recipe.loss.name not in BINARY:
        return recipe.data.labels or tuple(sorted(labels))
    classes = recipe.data.labels or dissimilar_first(labels)
    if len(classes) != 2:
        named = recipe.data.labels or sorted(labels)
        raise ConfigError(
            f"The loss {recipe.loss.name} takes two labels, but there are {', '.join(named)}; set "
            "data.labels to the label of dissimilar pairs and then the label of similar pairs."
        )
    return classes


def _embedding_teacher(recipe: BiEncoderRecipe) -> Embedder | None:
    if recipe.teacher is None or recipe.loss.kind.teacher != "bi-encoder":
        return None
    path, name = resolve_model(recipe.teacher).path, next(iter(recipe.prompt_names), "")
    teacher, given = Embedder(path, device=recipe.device), recipe.prompts.get(name)
    if given and not teacher.description.prompts.get(name):
        return Embedder(path, device=recipe.device, prompts={name: given})
    return teacher


def _with_teacher_targets(
    recipe: BiEncoderRecipe, teacher: Embedder | None, ranks: Ranks, rows: TextRows
) -> TextRows:
    if teacher is not None:
        name = next(iter(recipe.prompt_names), None)
        return ranks.first_then_others(partial(embed_by_teacher, rows, teacher, name))
    if recipe.teacher is not None:
        return score_by_teacher(rows, recipe.teacher, device=recipe.device)
    return rows


def _fill_table(
    model: StaticModel, rows: TextRows, tokens: RowTokens
) -> tuple[TextRows, RowTokens]:
    """Start a table with the mean vectors of texts; return the rows whose texts have tokens."""
    kept = tokens.table.lengths[tokens.ids].min(axis=1) > 0
    if n_empty := np.count_nonzero(~kept):
        warn(f"{n_empty:,} rows have a text without tokens, and are left out.")
        rows, tokens = rows.select(kept), replace(tokens, ids=tokens.ids[kept])
    vectors = torch.from_numpy(np.asarray(rows.targets, np.float32))
    model.start_from(tokens.table.pack(tokens.ids[:, 0]), vectors)
    return rows, tokens


def _enter_space(
    model: BiEncoder, rows: TextRows, tokens: RowTokens, unit_length: bool | None
) -> None:
    """Give a student its teacher's dimensions by a dense layer, and the norm of its embeddings."""
    targets = np.asarray(rows.targets, np.float32)
    if unit_length is None:
        norms = np.linalg.norm(targets[:_FITTED_ON], axis=1)
        unit_length = bool(np.allclose(norms, 1, atol=1e-3))
    parts = [part for part in model.head if isinstance(part, Dense)]
    model.head = nn.Sequential(*parts)
    if model.dim != targets.shape[1]:
        n_rows = min(_FITTED_ON, len(targets))
        chosen = np.linspace(0, len(targets) - 1, n_rows).astype(int)
        vectors = []
        model.eval()
        with progress("Fitting the dense layer", n_rows, "texts") as advance:
            for some in np.array_split(chosen, -(-n_rows // _FITTED_AT_ONCE)):
                table = tokens.table.take(tokens.ids[some, 0])
                vectors.append(torch.from_numpy(outputs_of(model, table, model.dim)))
                advance(len(some))
        parts.append(linear_map(torch.cat(vectors), torch.from_numpy(targets[chosen])))
    model.head = nn.Sequential(*parts, *[Normalize()] * unit_length)
