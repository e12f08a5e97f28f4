"""Anisotropy of a model: figures of each layer and of its sentence vectors, and remedies."""
