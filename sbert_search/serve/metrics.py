"""Counters, gauges and histograms in the text format of Prometheus.

Names and buckets are those of text-embeddings-inference where the meaning is the same.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

DURATIONS_S = tuple(1e-5 * 1.5**i for i in range(35))  # bounds of buckets
SIZES = tuple(float(2**i) for i in range(18))  # bounds, of texts or tokens

Labels = Mapping[str, str]
_NO_LABELS: Labels = {}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})  # of the value of a label

LabelKey: TypeAlias = tuple[tuple[str, str], ...]
"""Labels with their values."""

Values: TypeAlias = Mapping[LabelKey, tuple[float, ...]]
"""The numbers of a metric by its labels: one number, or the counts of a histogram and its sum."""

_NO_VALUES: Values = {}


class Sample(NamedTuple):
    """The metrics of one process by name, which another process adds to its own."""

    counted: Mapping[str, Values] = {}  # counters, histograms; kept after the process has ended
    current: Mapping[str, Values] = {}  # gauges whose sum over all processes has a meaning

    def plus(self, other: Sample) -> Sample:
        """Return the sums of two samples."""
        return Sample(_sums(self.counted, other.counted), _sums(self.current, other.current))


def _sums(one: Mapping[str, Values], two: Mapping[str, Values]) -> Mapping[str, Values]:
    return {name: add(one.get(name, {}), two.get(name, {})) for name in {**one, **two}}


def add(one: Values, two: Values) -> Values:
    """Return the sums of numbers with equal labels."""
    summed = dict(one)
    for key, numbers in two.items():
        before = summed.get(key)
        both = zip(before, numbers, strict=True) if before else ((0.0, n) for n in numbers)
        summed[key] = tuple(a + b for a, b in both)
    return summed


class Counter:
    """A number that only grows, for each value of its labels."""

    kind = "counter"

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[LabelKey, float] = {}

    def add(self, n: float = 1, labels: Labels = _NO_LABELS) -> None:
        """Add n."""
        key = tuple(labels.items())
        with self._guard:
            self._values[key] = self._values.get(key, 0) + n

    def total(self) -> float:
        """Return the sum over all labels."""
        with self._guard:
            return sum(self._values.values())

    def values(self) -> Values:
        """Return the numbers."""
        with self._guard:
            return {key: (value,) for key, value in self._values.items()}

    def lines(self, name: str, others: Values = _NO_VALUES) -> Iterator[str]:
        """Yield the lines of the text format, with the numbers of other processes added."""
        values = add(self.values(), others) or {(): (0.0,)}  # 0 before the first event
        return _number_lines(name, values)


class Gauge:
    """A number by labels that is computed anew each time the metrics are read.

    ``adds``: whether the sum over several processes has a meaning.
    """

    kind = "gauge"

    def __init__(self, read: Callable[[], Mapping[LabelKey, float]], *, adds: bool = True) -> None:
        self._read, self.adds = read, adds

    def values(self) -> Values:
        """Return the numbers."""
        return {key: (value,) for key, value in self._read().items()}

    def lines(self, name: str, others: Values = _NO_VALUES) -> Iterator[str]:
        """Yield the lines of the text format, with the numbers of other processes added."""
        return _number_lines(name, add(self.values(), others))


class Histogram:
    """Counts of observations by upper bound, and their sum, for each value of its labels."""

    kind = "histogram"

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._guard = threading.Lock()
        self._counts: dict[LabelKey, list[int]] = {}
        self._sums: dict[LabelKey, float] = {}

    def observe(self, value: float, labels: Labels = _NO_LABELS) -> None:
        """Count an observation."""
        key = tuple(labels.items())
        with self._guard:
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = [0] * (len(self._bounds) + 1)
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def values(self) -> Values:
        """Return the number of observations in each bucket, then the sum of the observed values."""
        with self._guard:
            return {key: (*counts, self._sums[key]) for key, counts in self._counts.items()}

    def lines(self, name: str, others: Values = _NO_VALUES) -> Iterator[str]:
        """Yield the samples, with the numbers of other processes added."""
        for labels, (*counts, seconds) in add(self.values(), others).items():
            total = 0.0
            for bound, count in zip((*self._bounds, None), counts, strict=True):
                total += count
                shown = "+Inf" if bound is None else f"{bound:.6g}"
                yield f"{name}_bucket{_shown((*labels, ('le', shown)))} {_number(total)}"
            yield f"{name}_sum{_shown(labels)} {_number(seconds)}"
            yield f"{name}_count{_shown(labels)} {_number(total)}"


class Metrics:
    """All metrics of a server; ``others`` are those of its other processes, which `text` adds."""

    def __init__(self) -> None:
        self.others = Sample()
        self._listed: dict[str, tuple[str, Counter | Gauge | Histogram]] = {}
        counter, histogram = self._counter, self._histogram
        self.requests = counter("te_request_count", "Requests by route.")
        self.successes = counter("te_request_success", "Requests answered with 2xx, by route.")
        self.failures = counter("te_request_failure", "Requests answered with an error.")
        self.durations = histogram("te_request_duration", "Seconds of a request, by route.")
        self.tokenization = histogram("te_request_tokenization_duration", "Seconds to tokenise.")
        self.waiting = histogram("te_request_queue_duration", "Seconds until the first batch.")
        self.inference = histogram("te_request_inference_duration", "Seconds of the model.")
        self.input_lengths = histogram("te_request_input_length", "Tokens of a text.", SIZES)
        self.batch_texts = histogram("te_batch_next_size", "Texts of a batch.", SIZES)
        self.batch_tokens = histogram("te_batch_next_tokens", "Tokens of a batch.", SIZES)
        self.searching = histogram(
            "sbert_search_search_duration", "Seconds of a search, without its embedding."
        )
        self.truncated = counter("sbert_search_truncated_texts", "Texts that were cut.")
        self.reloads = counter("sbert_search_reloads", "New commits that are served.")
        self.reload_failures = counter("sbert_search_reload_failures", "Commits that were refused.")
        counter("sbert_search_worker_restarts", "Worker processes that ended and were replaced.")

    def _counter(self, name: str, help: str) -> Counter:
        counter = Counter()
        self._listed[name] = (help, counter)
        return counter

    def _histogram(self, name: str, help: str, bounds: Sequence[float] = DURATIONS_S) -> Histogram:
        histogram = Histogram(bounds)
        self._listed[name] = (help, histogram)
        return histogram

    def add_gauge(
        self,
        name: str,
        help: str,
        read: Callable[[], Mapping[LabelKey, float]],
        *,
        adds: bool = True,
    ) -> None:
        """Register a gauge."""
        self._listed[name] = (help, Gauge(read, adds=adds))

    def sample(self) -> Sample:
        """Return the numbers of this process."""
        counted, current = {}, {}
        for name, (_, metric) in self._listed.items():
            if not isinstance(metric, Gauge):
                counted[name] = metric.values()
            elif metric.adds:
                current[name] = metric.values()
        return Sample(counted, current)

    def text(self) -> str:
        """Return the metrics of all processes in the text format, version 0.0.4."""
        others = {**self.others.counted, **self.others.current}
        lines: list[str] = []
        for name, (help, metric) in self._listed.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {metric.kind}"]
            lines += metric.lines(name, others.get(name, {}))
        return "\n".join(lines) + "\n"


def _number_lines(name: str, values: Values) -> Iterator[str]:
    for labels, (value,) in values.items():
        yield f"{name}{_shown(labels)} {_number(value)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _shown(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}"
