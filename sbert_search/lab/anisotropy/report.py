"""The figures of an analysis of anisotropy, as data, JSON, tables and SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sbert_search.base.files import replace_file
from sbert_search.base.machine import Code, Machine
from sbert_search.base.svg import Axis, Panel, colour_of, document, legend
from sbert_search.config import to_mapping
from sbert_search.lab.anisotropy.layer_sums import LayerFigures
from sbert_search.lab.anisotropy.remedies import LinearMap

UNCHANGED = "none"  # name of the case without a remedy: the vectors of the model
_HEIGHT, _GAP = 170, 56  # pixels: height of a panel; height of its title and tick labels

Table = tuple[list[str], list[list[object]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceFigures:
    """Figures of sentence vectors after one remedy.

    All figures except ``scores`` are computed from texts on which the remedy was not fitted.

    Attributes:
        remedy: Name of the remedy: standardising, all-but-the-top or whitening; none for the
            unchanged vectors of the model.
        dim: Dimensions of a vector.
        cosine: Mean cosine of all pairs of texts.
        cosine_quantiles: Quantiles of the cosines of pairs of the first 1,000 texts.
        high_cosines: Share of the same pairs with a cosine of at least 0.9.
        uniformity: Uniformity of at most 5,000 vectors scaled to norm 1; lower is better.
        first_direction: Share of the first principal direction in the variance.
        effective_rank: Effective rank of the vectors minus their mean.
        top_dimensions: The dimensions with the largest shares in ``cosine``, with the shares.
        deviations: Standard deviations along the principal directions, descending.
        scores: Metrics of each task, by name; for STS, alignment and uniformity are among them.
    """

    remedy: str
    dim: int
    cosine: float
    cosine_quantiles: dict[float, float]
    high_cosines: float
    uniformity: float
    first_direction: float
    effective_rank: float
    top_dimensions: dict[int, float]
    deviations: tuple[float, ...]
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
            "share of the top dimension": [_largest(each.top_dimensions) for each in self.layers],
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
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "anisotropy.json", folder / "anisotropy.svg"]
        replace_file(paths[0], (json.dumps(self.to_mapping(), indent=1) + "\n").encode())
        replace_file(paths[1], self.svg().encode())
        return paths


def shown_dimensions(shares: Mapping[int, float], most: int) -> str:
    """Format the first ``most`` dimensions with their shares in percent."""
    return ", ".join(f"{dim}: {share:.0%}" for dim, share in list(shares.items())[:most])


def _largest(shares: Mapping[int, float]) -> float:
    # A share exceeds 1 if other dimensions lower the mean cosine: their shares are negative.
    return min(1.0, max(shares.values()))


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
