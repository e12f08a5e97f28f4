"""Export an index to other search engines; build an index from vectors of another engine."""
