"""Disk access: the single writer of indexes and checkpoints, locks, mapped files, arrays."""
