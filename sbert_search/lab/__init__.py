"""Analyses of models and indexes."""
