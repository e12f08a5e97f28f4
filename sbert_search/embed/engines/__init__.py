"""The engines of an `Embedder`: the software that computes vectors from token ids."""
