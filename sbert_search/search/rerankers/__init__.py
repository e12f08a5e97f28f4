"""Models that score pairs of query and text, to rerank the hits of a search."""
