"""Commands of task heads."""
