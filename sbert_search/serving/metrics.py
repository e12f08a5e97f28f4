"""Counters, gauges and histograms in the text format of Prometheus.

Names and buckets are those of text-embeddings-inference where the meaning is the same.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

DURATION_BUCKETS = tuple(1e-5 * 1.5**i for i in range(35))  # seconds
SIZE_BUCKETS = tuple(float(2**i) for i in range(18))  # texts or tokens

Labels = Mapping[str, str]
_NO_LABELS: Labels = {}


class Counter:
    """A number that only grows, for each value of its labels."""

    kind = "counter"

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._values: dict[tuple[tuple[str, str], ...], float] = {}

    def add(self, n: float = 1, labels: Labels = _NO_LABELS) -> None:
        """Add n."""
        key = tuple(labels.items())
        with self._guard:
            self._values[key] = self._values.get(key, 0) + n

    def total(self) -> float:
        """Return the sum over all labels."""
        with self._guard:
            return sum(self._values.values())

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples."""
        with self._guard:
            values = dict(self._values) or {(): 0.0}
        for labels, value in values.items():
            yield f"{name}{_shown(labels)} {_number(value)}"


class Gauge:
    """A number that is read when the metrics are."""

    kind = "gauge"

    def __init__(self, read: Callable[[], Mapping[tuple[tuple[str, str], ...], float]]) -> None:
        self._read = read

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples."""
        for labels, value in self._read().items():
            yield f"{name}{_shown(labels)} {_number(value)}"


class Histogram:
    """How many observations are at most as large as each bound, for each value of its labels."""

    kind = "histogram"

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._guard = threading.Lock()
        self._counts: dict[tuple[tuple[str, str], ...], list[int]] = {}
        self._sums: dict[tuple[tuple[str, str], ...], float] = {}

    def observe(self, value: float, labels: Labels = _NO_LABELS) -> None:
        """Count an observation."""
        key = tuple(labels.items())
        with self._guard:
            counts = self._counts.get(key)
            if counts is None:
                counts = self._counts[key] = [0] * (len(self._bounds) + 1)
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[key] = self._sums.get(key, 0.0) + value

    def lines(self, name: str) -> Iterator[str]:
        """Yield the samples."""
        with self._guard:
            known = {key: list(counts) for key, counts in self._counts.items()}
            sums = dict(self._sums)
        for labels, counts in known.items():
            total = 0
            for bound, count in zip((*self._bounds, None), counts, strict=True):
                total += count
                shown = "+Inf" if bound is None else f"{bound:.6g}"
                yield f"{name}_bucket{_shown((*labels, ('le', shown)))} {total}"
            yield f"{name}_sum{_shown(labels)} {_number(sums[labels])}"
            yield f"{name}_count{_shown(labels)} {total}"


class Metrics:
    """All metrics of a server."""

    def __init__(self) -> None:
        self.requests = Counter()
        self.successes = Counter()
        self.failures = Counter()
        self.durations = Histogram(DURATION_BUCKETS)
        self.tokenization = Histogram(DURATION_BUCKETS)
        self.waiting = Histogram(DURATION_BUCKETS)
        self.inference = Histogram(DURATION_BUCKETS)
        self.searching = Histogram(DURATION_BUCKETS)
        self.input_lengths = Histogram(SIZE_BUCKETS)
        self.batch_texts = Histogram(SIZE_BUCKETS)
        self.batch_tokens = Histogram(SIZE_BUCKETS)
        self.truncated = Counter()
        self.reloads = Counter()
        self.reload_failures = Counter()
        self._listed: dict[str, tuple[str, Counter | Gauge | Histogram]] = {
            "te_request_count": ("Requests by route.", self.requests),
            "te_request_success": ("Requests answered with 2xx, by route.", self.successes),
            "te_request_failure": ("Requests answered with an error.", self.failures),
            "te_request_duration": ("Seconds of a request, by route.", self.durations),
            "te_request_tokenization_duration": ("Seconds to tokenise.", self.tokenization),
            "te_request_queue_duration": ("Seconds until the first batch.", self.waiting),
            "te_request_inference_duration": ("Seconds of the model.", self.inference),
            "te_request_input_length": ("Tokens of a text.", self.input_lengths),
            "te_batch_next_size": ("Texts of a batch.", self.batch_texts),
            "te_batch_next_tokens": ("Tokens of a batch.", self.batch_tokens),
            "sbert_search_search_duration": (
                "Seconds of a search, without its embedding.",
                self.searching,
            ),
            "sbert_search_truncated_texts": ("Texts that were cut.", self.truncated),
            "sbert_search_reloads": ("New commits that are served.", self.reloads),
            "sbert_search_reload_failures": ("Commits that were refused.", self.reload_failures),
        }

    def add_gauge(
        self,
        name: str,
        help: str,
        read: Callable[[], Mapping[tuple[tuple[str, str], ...], float]],
    ) -> None:
        """Add a gauge; ``read`` returns its value by labels."""
        self._listed[name] = (help, Gauge(read))

    def text(self) -> str:
        """Return all metrics in the text format, version 0.0.4."""
        lines: list[str] = []
        for name, (help, metric) in self._listed.items():
            lines += [f"# HELP {name} {help}", f"# TYPE {name} {metric.kind}", *metric.lines(name)]
        return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _shown(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    escaped = (
        f'{name}="{value.replace(chr(92), chr(92) * 2).replace(chr(34), chr(92) + chr(34))}"'
        for name, value in labels
    )
    return "{" + ",".join(escaped) + "}"
