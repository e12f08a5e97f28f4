"""Measure the anisotropy of a model, and the effect of remedies on the scores of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np

from sbert_search.base.device import resolve_device
from sbert_search.base.machine import code, machine
from sbert_search.base.progress import note, warn
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
from sbert_search.lab.anisotropy.layer_sums import DIMENSIONS, HIGH, QUANTILES
from sbert_search.lab.anisotropy.layers import pass_texts
from sbert_search.lab.anisotropy.remedies import LinearMap, MappedEmbedder, fit_remedies
from sbert_search.lab.anisotropy.report import UNCHANGED, AnisotropyReport, SentenceFigures
from sbert_search.lab.opening import open_folder
from sbert_search.lab.sampling import sample_texts
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.search.options import SearchOptions

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
                results[remedy].append(_evaluated(task, mapped, data))
    return results


def _evaluated(task: EvalTask, embedder: TextEmbedder, data: Path) -> Evaluation:
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
