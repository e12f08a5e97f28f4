"""Anisotropy of a model: figures of its layers and sentence vectors, and remedies."""
