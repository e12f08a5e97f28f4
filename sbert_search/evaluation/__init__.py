"""How good a model or an index is: tasks, runs, manifests and reports."""
