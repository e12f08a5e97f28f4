"""Texts to embeddings: the embedder, its engines, its batches and its cache."""
