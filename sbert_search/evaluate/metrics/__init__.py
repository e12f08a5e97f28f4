"""Metrics of rankings, similarity scores and embeddings, and the significance of differences."""
