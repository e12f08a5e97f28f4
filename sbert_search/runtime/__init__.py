"""Process-level services: files, memory, devices, seeds, threads, progress."""
