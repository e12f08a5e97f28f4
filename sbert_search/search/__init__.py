"""Search an index: from a query to hits."""
