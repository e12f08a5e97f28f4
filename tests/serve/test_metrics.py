"""The text format of Prometheus, by values worked out by hand."""

from __future__ import annotations

from sbert_search.serve.metrics import Counter, Gauge, Histogram, Metrics, Sample


def test_a_counter_adds_by_labels() -> None:
    counter = Counter()
    assert list(counter.lines("n")) == ["n 0"]
    counter.add(labels={"route": "/a"})
    counter.add(2, {"route": "/a"})
    counter.add(labels={"route": '/"b\\\n'})
    assert list(counter.lines("n")) == ['n{route="/a"} 3', r'n{route="/\"b\\\n"} 1']
    assert counter.total() == 4


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram([0.5, 1.0])
    for value in (0.25, 0.5, 0.75, 2.0):
        histogram.observe(value)
    assert list(histogram.lines("s")) == [
        's_bucket{le="0.5"} 2',
        's_bucket{le="1"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 3.5",
        "s_count 4",
    ]


def test_a_gauge_is_read_when_it_is_shown() -> None:
    values = [1.0, 2.5]
    gauge = Gauge(lambda: {(("index", "a"),): values.pop()})
    assert list(gauge.lines("g")) == ['g{index="a"} 2.5']
    assert list(gauge.lines("g")) == ['g{index="a"} 1']


def test_each_metric_has_help_and_type() -> None:
    metrics = Metrics()
    metrics.add_gauge("te_queue_size", "Tokens that wait.", lambda: {(): 3})
    lines = metrics.text().splitlines()
    assert lines[:3] == [
        "# HELP te_request_count Requests by route.",
        "# TYPE te_request_count counter",
        "te_request_count 0",
    ]
    assert lines[-1] == "te_queue_size 3"
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) == 16


def test_metrics_of_several_processes_are_added() -> None:
    one, two = Metrics(), Metrics()
    for metrics in (one, two):
        metrics.add_gauge("te_queue_size", "Tokens that wait.", lambda: {(): 3})
        metrics.add_gauge("docs", "Documents.", lambda: {(): 5}, adds=False)
    one.requests.add(2, {"method": "/search"})
    two.requests.add(3, {"method": "/search"})
    two.requests.add(4, {"method": "/embed"})
    one.batch_texts.observe(3)
    two.batch_texts.observe(4)
    two.batch_texts.observe(1000)
    one.others = Sample().plus(two.sample())
    lines = one.text().splitlines()
    for line in (
        'te_request_count{method="/search"} 5',
        'te_request_count{method="/embed"} 4',
        'te_batch_next_size_bucket{le="2"} 0',
        'te_batch_next_size_bucket{le="4"} 2',
        'te_batch_next_size_bucket{le="+Inf"} 3',
        "te_batch_next_size_sum 1007",
        "te_queue_size 6",
        "docs 5",
    ):
        assert line in lines
    assert 'te_request_count{method="/search"} 3' in two.text().splitlines()
