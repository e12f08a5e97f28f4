"""Attention of a model: its probabilities, figures of each head, and heads that can be removed."""
