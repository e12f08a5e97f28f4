"""Files: the only writer of indexes and checkpoints; locks, mapped files, arrays, tensors."""
