"""The engines of an `Embedder`: what computes the vectors of token ids."""
