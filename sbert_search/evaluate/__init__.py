"""Evaluate models and indexes: tasks, metrics, manifests and reports."""
