"""Vector search in the segments (parts) of an index: exact scan, or FAISS on a CPU or GPU."""
