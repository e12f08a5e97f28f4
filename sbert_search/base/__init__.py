"""Code that all parts of the package share: files, memory, devices, seeds, threads, progress."""
