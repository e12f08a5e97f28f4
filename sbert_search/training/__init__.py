"""Records in, checkpoints out: one loop for every model."""
