"""Losses: functions of embeddings or logits. They take no model and do not gather across ranks."""
