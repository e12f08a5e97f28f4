"""Memory stays bounded, whatever the size of a file, a line or a decompressed stream."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CHILD = """
import sys
from pathlib import Path
from sbert_search.text.documents import CorpusReader

def peak_mib():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024

before = peak_mib()
reader = CorpusReader(sys.argv[1], on_error="skip")
survey = reader.survey()
documents = sum(len(batch.documents) for batch in reader.batches())
print(survey.rows, documents, peak_mib() - before)
"""
N_ROWS = 32_000
ROW = '{"_id": "%06d", "title": "A title", "text": "' + "some words of text " * 200 + '"}\n'


def read_in_child(path: Path) -> tuple[int, int, int]:
    """Return rows, documents and the growth of the peak memory in MiB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the peak memory of a process is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, timeout=120
    )
    rows, documents, growth_mib = map(int, done.stdout.split())
    return rows, documents, growth_mib


@pytest.mark.thorough
def test_a_large_jsonl_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with path.open("w") as file:
        file.writelines(ROW % n for n in range(N_ROWS))
    assert path.stat().st_size > 110 << 20
    rows, documents, growth_mib = read_in_child(path)
    assert rows == documents == N_ROWS
    assert growth_mib < 60


@pytest.mark.thorough
def test_a_parquet_file_with_one_large_row_group(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    texts = [f"{n} " + "some words of text " * 200 for n in range(N_ROWS)]
    table = pa.table({"text": texts})
    pq.write_table(table, path, row_group_size=len(texts), use_dictionary=False)
    assert table.nbytes > 110 << 20
    rows, documents, growth_mib = read_in_child(path)
    assert rows == documents == N_ROWS
    assert growth_mib < 100


@pytest.mark.thorough
def test_a_line_without_end_from_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 2 << 20
    rows, documents, growth_mib = read_in_child(path)
    assert (rows, documents) == (1, 0)
    assert growth_mib < 200
