"""From vectors and documents to an index on disk, and to the rows nearest to a query."""
