"""Readers of file formats: each yields the rows of a file, and a `Reject` for each bad row."""
