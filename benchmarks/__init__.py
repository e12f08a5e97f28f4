"""How fast: one script a figure, each comparing us and a peer in one run."""
