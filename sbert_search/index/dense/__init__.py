"""Nearest neighbours in one segment by an exact scan or by FAISS on a CPU or GPU."""
