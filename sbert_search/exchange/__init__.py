"""Hand an index over to other engines, and build one from vectors that another engine holds."""
