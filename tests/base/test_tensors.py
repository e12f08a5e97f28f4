from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from sbert_search.base.files import xxh3_128_of
from sbert_search.base.tensors import write_tensors


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    tensors = {
        "weight": torch.randn(3, 5),
        "transposed": torch.randn(4, 2).T,
        "half": torch.randn(3).to(torch.bfloat16),
        "step": torch.tensor(7.0),
        "ids": torch.arange(3),
        "mask": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
    }
    path = tmp_path / "x.safetensors"
    file = write_tensors(path, tensors, {"format": "pt"})
    read = load_file(path)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    assert (file.n_bytes, file.digest) == (path.stat().st_size, xxh3_128_of(path))
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    with pytest.raises(FileExistsError):
        write_tensors(path, tensors)
