"""Choosing an index for the user's own vectors: measured, predicted before built, verified."""
