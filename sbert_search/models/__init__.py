"""Encoders with heads: pooling, bi-encoders, cross-encoders, and the folders they live in."""
