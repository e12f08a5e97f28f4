"""What a user of analyses writes: type checkers accept it and know every type.

It is checked and never run; see `tests/typing`.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from sbert_search import (
    AnisotropyReport,
    AttentionMaps,
    CorpusMap,
    ErrorReport,
    HeadReport,
    Index,
    MapSettings,
    VariantsRecipe,
    VariantsReport,
    analyze_anisotropy,
    analyze_attention,
    analyze_errors,
    analyze_heads,
    analyze_variants,
    map_index,
    save_with_map,
    write_errors,
    write_map,
)

Floats = NDArray[np.float32]


def analyze(index: Index) -> None:
    drawn = map_index(index, settings=MapSettings(points=1000), clusters=5, queries=["a question"])
    assert_type(drawn, CorpusMap)
    assert_type(drawn.layout, Floats)
    assert_type(drawn.groups(), list[list[int]])
    assert_type(write_map(drawn, "map", parquet=True), list[Path])
    report = analyze_anisotropy("a-model", ["a text"], sts=["pairs.tsv"], most_texts=100, seed=1)
    assert_type(report, AnisotropyReport)
    assert_type(report.layers[0].token_cosine, float)
    assert_type(report.write("runs"), list[Path])
    save_with_map("a-model", report.remedies["whitening"], "whitened")
    maps = analyze_attention("a-model", "a text", "another", device="cpu")
    assert_type(maps, AttentionMaps)
    assert_type(maps.heads[0].entropy, float)
    assert_type(analyze_heads("a-model", ["a text"], sts="pairs.tsv"), HeadReport)
    errors = analyze_errors("runs/scifact.json", data="data", worst=10)
    assert_type(errors, list[ErrorReport])
    assert_type(errors[0].slices[0].worse, bool)
    assert_type(write_errors(errors, "runs/errors"), list[Path])
    settings = VariantsRecipe(corpus=("texts",), held_out=("others",), tokens=1_000_000)
    assert_type(settings.ordered, list[str])
    compared = analyze_variants("variants.toml", "runs/variants", seeds=2, minutes=60)
    assert_type(compared, VariantsReport)
    assert_type(compared.tables["tokens"]["bert"]["held-out MLM loss"].mean, float)
