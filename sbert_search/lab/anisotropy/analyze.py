"""Measure the anisotropy of a model and the effect of remedies; the figures as JSON and SVG."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from sbert_search.base.device import resolve_device
from sbert_search.base.machine import Code, Machine, code, machine
from sbert_search.base.progress import note, warn
from sbert_search.base.svg import Axis, Panel, colour_of, document, legend
from sbert_search.config import to_mapping
from sbert_search.embed.cache import CachedEmbedder
from sbert_search.embed.embedder import Embedder
from sbert_search.embed.protocol import TextEmbedder, Vectors
from sbert_search.evaluate.manifest import Evaluation
from sbert_search.evaluate.metrics.isotropy import (
    UnitSums,
    cosine_quantiles,
    deviations,
    effective_rank,
    first_direction,
    pair_cosines,
    uniformity,
    unit_rows,
)
from sbert_search.evaluate.retrieval import evaluate_retrieval
from sbert_search.evaluate.similarity import evaluate_sts
from sbert_search.evaluate.tasks import EvalTask, distinct_tasks, find_task
from sbert_search.lab.anisotropy.layers import DIMENSIONS, HIGH, QUANTILES, LayerFigures, pass_texts
from sbert_search.lab.anisotropy.remedies import LinearMap, MappedEmbedder, fit_remedies
from sbert_search.lab.inputs import open_folder, sample_texts
from sbert_search.lab.templates import write_files
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.search.options import SearchOptions

UNCHANGED = "none"  # name of the case without a remedy: the vectors of the model
_HEIGHT, _GAP = 170, 56  # pixels: height of a panel; height of its title and tick labels

Table = tuple[list[str], list[list[object]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceFigures:
    """Figures of sentence vectors after one remedy.

    All figures except ``scores`` are computed from texts on which the remedy was not fitted.
    """

    remedy: str  # standardising, all-but-the-top or whitening; none: unchanged vectors
    dim: int  # of a vector
    cosine: float  # mean of all pairs of texts
    cosine_quantiles: dict[float, float]  # of pairs of the first 1,000 texts
    high_cosines: float  # share of the same pairs with a cosine of at least 0.9
    uniformity: float  # of at most 5,000 vectors scaled to norm 1; lower is better
    first_direction: float  # share of the first principal direction in the variance
    effective_rank: float  # of the vectors minus their mean
    top_dimensions: dict[int, float]  # those with the largest shares in ``cosine``, with the shares
    deviations: tuple[float, ...]  # standard, along the principal directions, descending
    # Metrics of each task, by name; for STS, alignment and uniformity are among them.
    scores: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AnisotropyReport:
    """The result of `analyze_anisotropy`.

    Attributes:
        model: Name of the model.
        weights_sha256: Hash of the model's weights.
        texts: Number of analysed texts.
        fitted_on: Number of texts that the remedies were fitted on; the other texts gave the
            figures of ``sentences``.
        seed: Seed of all random choices.
        layers: Figures of the embeddings and of each layer, over all texts.
        sentences: Figures of the sentence vectors, without and with each remedy.
        main_metrics: The main metric of each task.
        data_sha256: Hash of each file of the tasks, by ``task: file``.
        remedies: The fitted maps, by name.
        code: Version and commit of this package.
        machine: The machine of the analysis.

    Example:
        >>> texts = [f"{a} {b}" for a in ("cat", "dog", "sun") for b in ("sat", "ran", "far", "on")]
        >>> len(analyze_anisotropy("my-model", texts, device="cpu").layers)
        3
    """

    model: str
    weights_sha256: str
    texts: int
    fitted_on: int
    seed: int
    layers: tuple[LayerFigures, ...]
    sentences: tuple[SentenceFigures, ...]
    main_metrics: dict[str, str]
    data_sha256: dict[str, str]
    remedies: Mapping[str, LinearMap]
    code: Code
    machine: Machine

    def to_mapping(self) -> dict[str, object]:
        """Return all figures as JSON values; the maps of the remedies are left out."""
        plain = {
            name: value
            for name, value in vars(self).items()
            if name not in ("layers", "sentences", "remedies")
        }
        return plain | {
            "layers": [to_mapping(each) for each in self.layers],
            "sentences": [to_mapping(each) for each in self.sentences],
        }

    def layer_table(self) -> Table:
        """Columns and rows of a table of the layers."""
        columns = ["layer", "tokens", ">= 0.9", "texts", "self-sim", "adj.", "intra", "adj."]
        columns += ["1st dir.", "rank", "top dim."]
        rows: list[list[object]] = [
            [
                each.layer,
                each.token_cosine,
                each.high_token_cosines,
                each.sentence_cosine,
                each.self_similarity,
                each.self_similarity_adjusted,
                each.intra_sentence,
                each.intra_sentence_adjusted,
                each.first_direction,
                round(each.effective_rank),
                shown_dimensions(each.top_dimensions, 1),
            ]
            for each in self.layers
        ]
        return columns, rows

    def remedy_table(self) -> Table:
        """Columns and rows of a table of the sentence vectors and the remedies."""
        columns = ["remedy", "dim", "cos", ">= 0.9", "uniformity", "1st dir.", "rank"]
        columns += ["top dim.", *(f"{task} {m}" for task, m in self.main_metrics.items())]
        rows: list[list[object]] = [
            [
                each.remedy,
                each.dim,
                each.cosine,
                each.high_cosines,
                each.uniformity,
                each.first_direction,
                round(each.effective_rank),
                shown_dimensions(each.top_dimensions, 1),
                *(each.scores[task][metric] for task, metric in self.main_metrics.items()),
            ]
            for each in self.sentences
        ]
        return columns, rows

    def svg(self) -> str:
        """Draw three charts: figures by layer, and shares of variance by layer and by remedy."""
        layers: dict[str, list[float | None]] = {
            "mean cosine of tokens": [each.token_cosine for each in self.layers],
            "mean cosine of sentences": [each.sentence_cosine for each in self.layers],
            "self-similarity of words": [each.self_similarity for each in self.layers],
            "intra-sentence similarity": [each.intra_sentence for each in self.layers],
            # A share exceeds 1 if other dimensions have negative shares in the mean cosine.
            "share of the top dimension": [
                min(1.0, max(each.top_dimensions.values())) for each in self.layers
            ],
        }
        curves = {
            name: [(float(n), value) for n, value in enumerate(values) if value is not None]
            for name, values in layers.items()
        }
        spectra = {f"layer {each.layer}": _spectrum(each.deviations) for each in self.layers}
        remedied = {each.remedy: _spectrum(each.deviations) for each in self.sentences}
        body, top = "", 26.0
        for title, lines in (
            ("By layer, for tokens, without special tokens", curves),
            ("Share of the variance by principal direction, tokens of each layer", spectra),
            ("Share of the variance by principal direction, sentence vectors", remedied),
        ):
            drawn, top = _chart(title, lines, top)
            body += drawn
        return document(body, top)

    def write(self, out: str | Path) -> list[Path]:
        """Write ``anisotropy.json`` and ``anisotropy.svg`` into a folder; return their paths."""
        record = json.dumps(self.to_mapping(), indent=1) + "\n"
        contents = {"anisotropy.json": record.encode(), "anisotropy.svg": self.svg().encode()}
        return write_files(out, contents)


def shown_dimensions(shares: Mapping[int, float], most: int) -> str:
    """Format the first ``most`` dimensions with their shares in percent."""
    return ", ".join(f"{dim}: {share:.0%}" for dim, share in list(shares.items())[:most])


def _spectrum(deviations: Sequence[float]) -> list[tuple[float, float]]:
    """Return points (number of a principal direction, from 1; its share of the variance)."""
    variances = [deviation**2 for deviation in deviations]
    total = sum(variances) or 1.0
    shares = [(float(n), variance / total) for n, variance in enumerate(variances, 1)]
    return [point for point in shares if point[1] > 1e-7]


def _chart(
    title: str, lines: Mapping[str, list[tuple[float, float]]], top: float
) -> tuple[str, float]:
    """Draw lines below ``top``, with a legend; return the SVG and the top of the next chart."""
    points = [point for line in lines.values() for point in line]
    log = title.startswith("Share")
    ys = [y for _, y in points]
    y_axis = Axis.of(ys, log=True) if log else Axis.of([0.0, *ys])
    panel = Panel(title, Axis.of([x for x, _ in points], log=log), y_axis, top, top + _HEIGHT)
    drawn = "".join(panel.line(line, colour_of(n)) for n, line in enumerate(lines.values()))
    end = top + _HEIGHT + 34
    return panel.frame() + drawn + legend(list(lines), end), end + 16 * len(lines) + _GAP - 20


FEWEST = 10  # fewest texts; the remedies are fitted on one half and measured on the other half
_PAIRED = 1000  # number of texts of which all pairs are compared for quantiles of the cosine
_UNIFORM = 5000  # largest number of texts for uniformity, whose time is quadratic in the number


class AnisotropyOptions(TypedDict, total=False):
    """Options of `analyze_anisotropy`.

    Attributes:
        sts: Files of scored pairs or task files, on which the remedies are measured.
        retrieval: BEIR folders or task files, on which the remedies are measured.
        data: Folder that the paths in task files start from; default "data".
        split: Split of the judgements of a BEIR folder; default "test".
        most_texts: Largest number of texts to analyse, chosen at random; default 10,000.
        directions: Directions that all-but-the-top removes; default: one for each 100 dimensions.
        whitened_dim: Dimensions that whitening keeps; default: one for each direction in which
            the vectors vary.
        device: Device of the model, as for `Embedder`. The model computes in fp32.
        seed: Seed of all random choices; default 0.
    """

    sts: Sequence[str | Path]
    retrieval: Sequence[str | Path]
    data: str | Path
    split: str
    most_texts: int
    directions: int | None
    whitened_dim: int | None
    device: str
    seed: int


def analyze_anisotropy(
    model: str | Path | None, texts: Iterable[str], **options: Unpack[AnisotropyOptions]
) -> AnisotropyReport:
    """Measure the anisotropy of each layer of a model, and the effect of remedies.

    Vectors are anisotropic if they point in similar directions, so that even unrelated texts have
    a high cosine. The remedies are linear maps of the sentence vectors: standardising,
    all-but-the-top and whitening. They are fitted on the sentence vectors of one half of the texts.
    The figures of the sentence vectors are computed from the other half. If tasks are given, the
    model is also evaluated on them without and with each remedy.

    Args:
        model: Name or folder of the model; None: the default model of `Embedder`. This
            package's own encoder must support its architecture.
        texts: At least 10 different texts, such as sentences. Use hundreds for precise figures.
        options: Tasks, and settings of the analysis; see `AnisotropyOptions`.

    Raises:
        ConfigError: A setting is invalid.
        CorpusError: A task cannot be read.
        EvaluationError: There are too few texts, all sentence vectors are equal, a task does not
            exist, or a task in ``sts`` or ``retrieval`` is of another kind.
        ModelError: The model cannot be found or loaded, or has an unsupported architecture.

    Sources: Ethayarajh 2019 (arXiv:1909.00512), Timkey & van Schijndel 2021 (arXiv:2109.04404),
    Mu & Viswanath 2018 (arXiv:1702.01417), Su et al. 2021 (arXiv:2103.15316).

    Example:
        >>> texts = [f"{a} {b}" for a in ("cat", "dog", "sun") for b in ("sat", "ran", "far", "on")]
        >>> sorted(analyze_anisotropy("my-model", texts, device="cpu").remedies)
        ['all-but-the-top', 'standardising', 'whitening']
    """
    seed = options.get("seed", 0)
    tasks = _tasks(options)
    folder, name = open_folder(model)
    chosen = sample_texts(texts, options.get("most_texts", 10_000), seed=seed, fewest=FEWEST)
    device = resolve_device(options.get("device", "auto"))
    passed = pass_texts(BiEncoder.from_folder(folder).to(device), chosen, seed=seed)
    vectors = passed.vectors[:, : folder.description.truncate_dim]
    half = len(vectors) // 2
    remedies = fit_remedies(
        vectors[:half],
        directions=options.get("directions"),
        whitened_dim=options.get("whitened_dim"),
    )
    if (rank := len(remedies["whitening"].weight)) < vectors.shape[1] and half <= vectors.shape[1]:
        warn(
            f"The remedies were fitted on {half:,} texts, fewer than the vectors have dimensions; "
            f"whitening keeps {rank} of {vectors.shape[1]}. Give more texts."
        )
    maps: dict[str, LinearMap | None] = {UNCHANGED: None, **remedies}
    results = _evaluate(model, maps, tasks, options) if tasks else {}
    return AnisotropyReport(
        model=name,
        weights_sha256=folder.weights_sha256(),
        texts=len(vectors),
        fitted_on=half,
        seed=seed,
        layers=passed.layers,
        sentences=tuple(
            _sentence_figures(
                remedy,
                vectors[half:] if fitted is None else fitted(vectors[half:]).astype(np.float32),
                results.get(remedy, []),
            )
            for remedy, fitted in maps.items()
        ),
        main_metrics={task.name: task.main_metric for task in tasks},
        data_sha256={
            f"{result.task.name}: {file}": sha256
            for result in results.get(UNCHANGED, [])
            for file, sha256 in result.manifest["data_sha256"].items()
        },
        remedies=remedies,
        code=code(),
        machine=machine(),
    )


def _tasks(options: AnisotropyOptions) -> list[EvalTask]:
    split = options.get("split", "test")
    sts = [find_task("sts", str(name), split=split) for name in options.get("sts", ())]
    folders = options.get("retrieval", ())
    return distinct_tasks(
        [*sts, *(find_task("retrieval", str(name), split=split) for name in folders)]
    )


def _evaluate(
    model: str | Path | None,
    maps: dict[str, LinearMap | None],
    tasks: Sequence[EvalTask],
    options: AnisotropyOptions,
) -> dict[str, list[Evaluation]]:
    """Evaluate the model without and with each remedy; every text is embedded only once."""
    data = Path(options.get("data", "data"))
    results: dict[str, list[Evaluation]] = {}
    embedder = Embedder(model, device=options.get("device", "auto"), precision="fp32")
    with closing(CachedEmbedder(embedder)) as cached:
        for remedy, fitted in maps.items():
            mapped: TextEmbedder = MappedEmbedder(cached, remedy, fitted) if fitted else cached
            results[remedy] = []
            for task in tasks:
                note(f"{task.name}, remedy {remedy}")
                results[remedy].append(evaluate_vectors(task, mapped, data))
    return results


def evaluate_vectors(task: EvalTask, embedder: TextEmbedder, data: Path) -> Evaluation:
    """Evaluate the vectors: words, which hybrid search compares too, are the same for all."""
    if task.kind == "sts":
        return evaluate_sts(task, embedder, data=data)
    return evaluate_retrieval(task, embedder, data=data, search=SearchOptions(mode="dense"))


def _sentence_figures(
    remedy: str, vectors: Vectors, results: Sequence[Evaluation]
) -> SentenceFigures:
    exact = np.asarray(vectors, dtype=np.float64)
    sums, paired = UnitSums.of(vectors), vectors[:_PAIRED]
    spread = deviations(exact.T @ exact, exact.sum(axis=0), len(exact))
    return SentenceFigures(
        remedy=remedy,
        dim=vectors.shape[1],
        cosine=sums.mean_cosine(),
        cosine_quantiles=dict(cosine_quantiles(paired, QUANTILES)),
        high_cosines=float((pair_cosines(paired) >= HIGH).mean()),
        uniformity=uniformity(unit_rows(vectors[:_UNIFORM])),
        first_direction=first_direction(spread),
        effective_rank=effective_rank(spread),
        top_dimensions=sums.dimension_shares(DIMENSIONS),
        deviations=tuple(spread.tolist()),
        scores={each.task.name: dict(each.scores) for each in results},
    )
