"""Storing documents with their vectors in an index on disk, and finding passages for a query."""
