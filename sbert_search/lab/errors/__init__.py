"""Analysis of errors: the worst items of a run, and kinds of items with more errors."""
