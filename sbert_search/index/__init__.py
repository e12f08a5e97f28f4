"""An index on disk: stores documents and their vectors, and finds the passages that fit a query."""
