"""Tensors in, loss out: no loss sees a model, and none gathers across ranks."""
