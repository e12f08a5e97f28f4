"""Adapters for other frameworks: one subpackage for each, which needs the extra of its name."""
