#!/usr/bin/env bash
# faiss-cpu 1.15.1: IndexFlatL2Panorama and IndexFlatIPPanorama are subclasses of IndexFlat, but
# get_xb() does not hold their vectors row by row, as it does for IndexFlatL2 and IndexFlatIP. Code
# that takes any IndexFlat for a matrix reads scrambled vectors without an error.
# reconstruct_n() returns the rows that were added.
#
# Seen: IndexFlatL2 True True
#       IndexFlatL2Panorama True False
#       IndexFlatIPPanorama True False
# (name, whether it is an IndexFlat, whether get_xb() equals the rows that were added)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" faiss-cpu==1.15.1 numpy
PYTHONPATH="$folder" python3 - <<'PYTHON'
import faiss
import numpy as np

rows = np.random.default_rng(0).standard_normal((300, 64)).astype("float32")
seen = []
for index in (faiss.IndexFlatL2(64), faiss.IndexFlatL2Panorama(64, 8), faiss.IndexFlatIPPanorama(64, 8)):
    index.add(rows)
    assert np.array_equal(index.reconstruct_n(0, 300), rows)
    stored = faiss.rev_swig_ptr(index.get_xb(), rows.size).reshape(rows.shape)
    seen.append((type(index).__name__, isinstance(index, faiss.IndexFlat), np.array_equal(stored, rows)))
    print(*seen[-1])
expected = [
    ("IndexFlatL2", True, True),
    ("IndexFlatL2Panorama", True, False),
    ("IndexFlatIPPanorama", True, False),
]
raise SystemExit(seen != expected)
PYTHON
