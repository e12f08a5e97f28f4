"""Verdicts for tests, in place of a measurement."""

from __future__ import annotations

from sbert_search.base.verdicts import Verdict
from sbert_search.models.encoder.encoder import Encoder


def verdict(choice: str) -> Verdict:
    """Return the verdict that one of fp32 and bf16 is twice as fast as the other."""
    costs = {name: 1.0 if name == choice else 2.0 for name in ("fp32", "bf16")}
    return Verdict(
        subject="precision of inference",
        choice=choice,
        costs=costs,
        work="a layer",
        cpu="a processor",
        threads=2,
    )


def bf16_is_faster(encoder: Encoder) -> Verdict:
    """Stand in for `inference_precision`."""
    return verdict("bf16")


def fp32_is_faster(encoder: Encoder) -> Verdict:
    """Stand in for `inference_precision`."""
    return verdict("fp32")
