"""How a process runs: files, devices, seeds, progress."""
