"""Predict with task heads: classes of texts, entities in texts, and answers to questions."""
