"""Texts to matrices."""
