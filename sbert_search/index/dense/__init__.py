"""Nearest neighbours in one segment: exact scans, FAISS on CPU or GPU, and the choice of one."""
