"""Disk access: durable writes, locks, memory-mapped files, and files of arrays."""
