"""Storing documents with their vectors in an index on disk, and finding the rows for a query."""
