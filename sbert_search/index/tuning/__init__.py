"""Choosing the kind of index for the user's own vectors, by measuring searches."""
