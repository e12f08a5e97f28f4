"""Getting documents into an index: builds, updates, given vectors, model checks, Parquet files."""
