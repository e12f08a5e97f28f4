"""Models that score pairs of query and text, for the stage that reranks."""
