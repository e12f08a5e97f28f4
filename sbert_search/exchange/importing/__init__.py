"""Building an index from vectors that a file or another engine holds."""
