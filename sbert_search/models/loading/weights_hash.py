"""Hash the weights of a model in memory."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def state_sha256(module: nn.Module) -> str:
    """Hash names, types, shapes and values of all parameters and buffers, in the order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        digest.update(memoryview(data.numpy()))
    return digest.hexdigest()
