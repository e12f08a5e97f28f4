"""What the trainings of all heads share: settings, inputs, batches and losses, frozen encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from sbert_search.base import arrays as npy
from sbert_search.base import files
from sbert_search.base.device import resolve_device, to_device
from sbert_search.base.progress import note, progress
from sbert_search.declared import Bounds, check
from sbert_search.errors import ConfigError, CorpusError
from sbert_search.heads import adversarial
from sbert_search.heads.adversarial import AdversarialConfig
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import SEQUENCE_HEADS
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import SideFile, read_side_file, write_side_file
from sbert_search.models.token_classifier import PerTokenModel, QuestionAnswerer, TokenClassifier
from sbert_search.text.labelled.retrieval import fold_case_and_space
from sbert_search.text.labelled.texts import LabelKind
from sbert_search.text.tokens.batching import TOKENS_AT_ONCE, token_batches
from sbert_search.train.data.token_table import TokenTable
from sbert_search.train.loop.loop import TrainConfig
from sbert_search.train.loop.objective import Batch, Batches, Losses, Rows, Sum
from sbert_search.train.loop.schedule import FEWEST_ROWS, DevMetrics
from sbert_search.train.loop.step import Penalties
from sbert_search.train.recipe import Kind
from sbert_search.train.run import Run, Training

Head = SequenceClassifier | PerTokenModel
T = TypeVar("T")
M = TypeVar("M", SequenceClassifier, TokenClassifier, QuestionAnswerer)
Tune = Literal["full", "head", "probe"]
ClassWeights = Literal["none", "balanced"] | tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadDataConfig:
    """The data files of a task head."""

    train: Path | tuple[Path, ...]  # file or files to train on
    dev: Path | None = None  # file for the dev metrics
    # Without `dev`: share of the rows held out, unless that is too few.
    held_out: Annotated[float, Bounds(0, below=1)] = 0.0
    # Maximum number of training rows, those with the smallest hashes.
    limit: Annotated[int | None, Bounds(1)] = None

    def __post_init__(self) -> None:
        check(self, table="data.")
        if not self.files:
            raise ConfigError("data.train is an empty list; name at least one file.")

    @property
    def files(self) -> tuple[Path, ...]:
        """The training files."""
        return (self.train,) if isinstance(self.train, Path) else self.train


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(TrainConfig):
    """Settings of every training run of a task head."""

    model: str | Path | None = None  # folder or name; None: the installed all-MiniLM-L6-v2
    random_weights: bool = False  # start from random weights in the shape of `model`
    max_len: int = 128  # maximum tokens of a text or pair
    tune: Tune = "full"  # all, the head, or one linear layer that is fitted to convergence (probe)
    adversarial: AdversarialConfig = field(default_factory=AdversarialConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adversarial.kind != "none" and self.tune != "full":
            raise ConfigError(
                f"adversarial.kind is {self.adversarial.kind}, which changes the embeddings of the "
                f"encoder, but tune is {self.tune}; set tune=full."
            )


def read_split(
    read: Callable[[Path], list[T]], key: Callable[[T], str], data: HeadDataConfig
) -> tuple[list[T], list[T]]:
    """Read the rows to train on and the dev rows; see `split_rows`."""
    rows = [row for path in data.files for row in read(path)]
    rows, held = split_rows(rows, [key(row) for row in rows], data)
    return rows, held if data.dev is None else read(data.dev)


def split_rows(
    rows: Sequence[T], keys: Sequence[str], data: HeadDataConfig
) -> tuple[list[T], list[T]]:
    """Split the training rows into those to train on and those held out, by hashes of their keys.

    Copies of a row, also in other case, are all on one side. With a limit, the rows with the
    smallest hashes are kept, so a smaller limit gives a subset of the rows of a larger one. If
    fewer rows would be held out than a checkpoint can be chosen by, a note says so, and all rows
    are to train on.
    """
    share = 0.0 if data.dev else data.held_out
    folded = map(fold_case_and_space, keys)
    hashes = [xxhash.xxh3_64_intdigest(key.encode()) / 2**64 for key in folded]
    held = [row for row, place in zip(rows, hashes, strict=True) if place >= 1 - share]
    if share and len(held) < FEWEST_ROWS:
        note(
            f"data.held_out is {share}, which holds out {len(held)} of {len(rows):,} rows: fewer "
            f"than {FEWEST_ROWS} cannot show which checkpoint is best. The run trains on them too, "
            "and the model of the last step is the result."
        )
        share, held = 0.0, []
    kept = [(place, n) for n, place in enumerate(hashes) if place < 1 - share]
    if not kept:
        raise CorpusError(
            f"data.held_out is {data.held_out}: none of {len(rows):,} rows is left to train on. "
            "Change it, or name a file with data.dev."
        )
    chosen = sorted(n for _, n in sorted(kept)[: data.limit])
    return [rows[n] for n in chosen], held


def class_weights(
    chosen: ClassWeights, kind: LabelKind, labels: Sequence[str], targets: NDArray[np.generic]
) -> Tensor | None:
    """Return the weight of each class, float32 (labels,); None: all weights are 1.

    The balanced weight is 1 / (number of items with the class) or, if an item may have several
    classes, (number without it) / (number with it); a count of 0 is replaced by 1. If each item has
    one class, the weights are scaled so that their mean over the items is 1.
    """
    if chosen == "none" or kind == "number":
        return None
    matrix = np.eye(len(labels))[targets] if kind == "class" else targets.astype(float)
    counts = matrix.sum(axis=0)
    if chosen == "balanced":
        without = np.maximum(len(matrix) - counts, 1) if kind == "several" else 1
        values = without / np.maximum(counts, 1)
    elif len(chosen) != len(labels):
        raise ConfigError(
            f"class_weights has {len(chosen)} values; the {len(labels)} classes are "
            f"{', '.join(labels)}. Give one for each."
        )
    else:
        values = np.array(chosen, dtype=float)
        if not (np.isfinite(values) & (values > 0)).all():
            raise ConfigError(
                f"class_weights is {list(chosen)}; each weight must be finite and above 0."
            )
    if kind == "class":
        values = values * counts.sum() / (values * counts).sum()
    return torch.tensor(values, dtype=torch.float32)


class HeadInputs(NamedTuple):
    """The input of a head for some rows: their tokens, or the states of a frozen encoder."""

    tokens: PackedTokens | None = None
    places: Tensor | None = None  # of the tokens that the head reads, int64 (n,); None: all
    states: Tensor | None = None  # float (n, hidden)

    def encode(self, model: Head) -> Tensor:
        """Compute the states that the head reads, float (n, hidden)."""
        return self._passed_to(model.states)

    def logits(self, model: nn.Module) -> Tensor:
        """Compute the logits of a head, float32 (n, labels)."""
        if self.states is not None:
            assert isinstance(model, SequenceClassifier | PerTokenModel | FrozenClassifier)
            return model.classify(self.states)
        return self._passed_to(model)

    def _passed_to(self, function: Callable[..., Tensor]) -> Tensor:
        if self.places is None:
            return function(self.tokens)
        return function(self.tokens, self.places)


class CachedStates:
    """The encoder's output states of the training rows, which a head reads, memory-mapped.

    ``states`` is float32 (states, hidden); ``starts`` the index of the first state of each row,
    then the number of states; ``encoder`` a checksum of the weights.
    """

    def __init__(
        self, states: NDArray[np.float32], starts: NDArray[np.int64], encoder: str
    ) -> None:
        self.states, self.starts, self.encoder = states, starts, encoder

    @classmethod
    def compute(
        cls,
        run: Run,
        model: Head,
        take: Callable[[Rows], HeadInputs],
        lengths: NDArray[np.int64],
        n_states: NDArray[np.int64],
    ) -> CachedStates:
        """Compute the states of all rows, without dropout, and write them to a temporary file.

        ``lengths`` counts the tokens of each row. The file's name is removed at the end; the system
        frees its space when the states are no longer used.
        """
        device = resolve_device(run.recipe.device)
        path = run.out / f"states-{run.ranks.rank}.npy"
        model.to(device).eval()
        starts = np.cumsum([0, *n_states], dtype=np.int64)
        hidden = model.encoder.config.hidden_size
        shape = (int(starts[-1]), hidden)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        try:
            # The file has the states in the order of the rows. Within each block of 1024 rows,
            # rows of similar length are computed together.
            with (
                files.NewFile(path) as file,
                progress("Encoding", len(lengths), "rows") as advance,
                torch.no_grad(),
            ):
                file.write(npy.header(np.float32, shape))
                for start in range(0, len(lengths), 1024):
                    rows = np.arange(start, min(start + 1024, len(lengths)))
                    size = starts[rows[-1] + 1] - starts[start]
                    block = np.empty((size, hidden), dtype=np.float32)
                    for part in token_batches(lengths[rows], TOKENS_AT_ONCE):
                        computed = to_device(take(rows[part]), device).encode(model)
                        place = _items(starts, rows[part]) - starts[start]
                        block[place] = computed.float().cpu().numpy()
                    file.write(block)
                    advance(len(rows))
            states = npy.read(files.map_file(path), np.float32, shape)
        finally:
            path.unlink(missing_ok=True)
        return cls(states, starts, _weights_digest(model.encoder))

    def penalty(self) -> float:
        """Return the L2 penalty of the weights of a linear layer on the states.

        It is 1, as in the logistic regression of scikit-learn, for states of norm 1, and grows with
        the square of their norm, so the predictions do not depend on the scale of the states.
        """
        blocks = np.array_split(self.states, len(self.states) // 4096 + 1)
        return sum(float(np.vdot(each, each)) for each in blocks) / len(self.states)

    def take(self, rows: Rows) -> Tensor:
        """Return the states of some rows, float32 (states of these rows, hidden)."""
        return torch.from_numpy(self.states[_items(self.starts, rows)])


def _weights_digest(encoder: Encoder) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in encoder.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


def _items(starts: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    sizes = starts[rows + 1] - starts[rows]
    offsets = np.repeat(starts[rows] - np.cumsum(sizes) + sizes, sizes)
    return offsets + np.arange(len(offsets))


def train_only(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Freeze all parameters of a model except ``parameters``."""
    model.requires_grad_(False)
    for parameter in parameters:
        parameter.requires_grad_()


class FrozenClassifier(nn.Module):
    """A classifier whose encoder is frozen; its head, or a linear layer in its place, is trained.

    The linear layer, ``probe``, starts with the weights of the classifier's last layer; it is
    trained if ``is_probe``, and else the layers of the head are.
    """

    def __init__(self, classifier: SequenceClassifier, *, probe: bool) -> None:
        super().__init__()
        self.classifier = classifier
        self.probe = nn.Linear(classifier.out.in_features, classifier.out.out_features)
        self.probe.load_state_dict(classifier.out.state_dict())
        layers = (classifier.inner, classifier.norm, classifier.out)
        head = [each for layer in layers for each in layer.parameters()]
        self.is_probe = probe
        train_only(self, [*self.probe.parameters()] if probe else head)

    def classify(self, states: Tensor) -> Tensor:
        """Compute logits, float32 (batch, labels), from the states of the texts."""
        if not self.is_probe:
            return self.classifier.classify(states)
        logits: Tensor = self.probe(states.to(self.probe.weight.dtype))
        return logits

    def complete(self) -> SequenceClassifier:
        """Return the classifier; a trained probe is first written into its head."""
        if self.is_probe:
            self.classifier.become_linear(self.probe)
        return self.classifier

    def save(self, path: Path) -> None:
        """Write the classifier to a folder."""
        self.complete().save(path)


class HeadTask(Generic[T, M]):
    """The training of a head, whose subclass for each kind of head fills in what differs.

    Args:
        recipe: All settings.
        model: The model with the head.
        rows: The rows to train on.
        table: Their tokens.
        targets: Their targets, for the checksum of the data.
        n_states: Number of states of each row that the head reads, (rows,).
        trained: The module that is trained, of which ``model`` is a part; None: ``model``.
    """

    kind: Kind
    loss: str  # name of the loss
    calibrates = True  # whether a setting is fitted to the dev data, if there are any
    divergence: adversarial.Divergence = staticmethod(adversarial.symmetric_kl)
    n_terms: NDArray[np.int64] | None = None  # of each row in the loss, (rows,); None: one

    def __init__(
        self,
        recipe: HeadRecipe,
        model: M,
        rows: Sequence[T],
        table: TokenTable,
        targets: NDArray[np.generic],
        n_states: NDArray[np.int64],
        trained: nn.Module | None = None,
    ) -> None:
        layout = model.encoder.config.layout
        if recipe.tune == "probe" and SEQUENCE_HEADS[layout].norm is not None:
            raise ConfigError(
                f"tune is 'probe', but heads of the layout {layout!r} have a norm, so no logits of "
                "them are linear; set tune=head or tune=full, or name another model."
            )
        self.model: M = model
        self.recipe, self.rows, self.table = recipe, rows, table
        self.targets, self.n_states, self.lengths = targets, n_states, table.lengths
        self.trained = trained or model
        self.names = [self.loss] + [adversarial.LOSS] * (recipe.adversarial.kind != "none")
        self.states: CachedStates | None = None  # of a frozen encoder

    def inputs(self, rows: Rows) -> HeadInputs:
        """Make the inputs of some rows from their tokens."""
        return HeadInputs(self.table.pack(rows))

    def frozen_inputs(self, rows: Rows, states: Tensor) -> HeadInputs:
        """Make the inputs of some rows from the states of their tokens."""
        return HeadInputs(states=states)

    def targets_of(self, rows: Rows) -> Tensor:
        """Return the targets of some rows."""
        return torch.from_numpy(self.targets[rows])

    def logits(self, inputs: HeadInputs, module: nn.Module) -> Tensor:
        """Compute the logits that the loss reads."""
        return inputs.logits(module)

    def sum_losses(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return the sum of the losses of some rows, and the number of its terms."""
        raise NotImplementedError

    def penalties(self, penalty: float) -> Penalties:
        """Return the L2 penalties of a probe; ``penalty`` is for a loss of one term a state."""
        raise NotImplementedError

    def dev_metrics(self, dev: Sequence[T]) -> DevMetrics:
        """Make the function that computes the dev metrics."""
        raise NotImplementedError

    def fit(self, side: SideFile, model: M, dev: Sequence[T]) -> SideFile:
        """Fit a setting of the best model, such as its temperature, to the dev data."""
        raise NotImplementedError

    def training(self, run: Run, dev: Sequence[T], files: Sequence[Path]) -> Training:
        """Make the training; if the encoder is frozen, compute its states of all rows.

        ``files`` are those of the training data.
        """
        recipe, fingerprint = self.recipe, self.table.fingerprint(self.targets)
        penalties: Penalties | None = None
        if recipe.tune != "full":
            self.states = states = CachedStates.compute(
                run, self.model, self.inputs, self.lengths, self.n_states
            )
            fingerprint += f", frozen encoder {states.encoder}"  # no run resumes with another one
            if recipe.tune == "probe":
                penalties = self.penalties(states.penalty())
        return Training(
            kind=self.kind,
            model=self.trained,
            objective=self.objective,
            batches=Batches(
                self.lengths,
                self.batch,
                recipe.batching,
                seed=recipe.seed,
                fingerprint=fingerprint,
            ),
            save_model=self.save,
            dev=self.dev_metrics(dev) if dev else None,
            files=files,
            n_rows=len(self.rows),
            penalties=penalties,
            calibrate=partial(self._calibrate, dev) if self.calibrates else None,
        )

    def batch(self, rows: Rows, epoch: int) -> Batch:
        """Make a batch of rows, sorted by length."""
        rows = rows[np.argsort(self.lengths[rows], kind="stable")]
        if self.states is None:
            inputs = self.inputs(rows)
        else:
            inputs = self.frozen_inputs(rows, self.states.take(rows))
        count = len(rows) if self.n_terms is None else int(self.n_terms[rows].sum())
        return Batch(inputs, rows, dict.fromkeys(self.names, count), self.targets_of(rows))

    def objective(self, model: nn.Module, batch: Batch) -> Losses:
        """Compute the loss of a batch, and that of perturbed embeddings if it is turned on."""
        inputs, config = batch.inputs, self.recipe.adversarial
        assert isinstance(inputs, HeadInputs)
        assert batch.targets is not None
        logits = self.logits(inputs, model)
        total, count = self.sum_losses(logits, batch.targets)
        sums: dict[str, Sum] = {self.loss: (total, count)}
        if config.kind != "none":
            assert inputs.tokens is not None
            forward, encoder = partial(self.logits, inputs, model), self.model.encoder
            change = adversarial.virtual_adversarial(
                forward, logits, self.divergence, encoder, inputs.tokens, config
            )
            sums[adversarial.LOSS] = (change, count)
        return Losses(sums, weights={adversarial.LOSS: config.weight})

    def save(self, path: Path) -> None:
        """Write the model to a folder."""
        self.model.save(path)

    def _calibrate(self, dev: Sequence[T], folder: Path) -> None:
        model = self.model.load(folder).to(resolve_device(self.recipe.device))
        write_side_file(folder, self.fit(read_side_file(folder), model, dev))
