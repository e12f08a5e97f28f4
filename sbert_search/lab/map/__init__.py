"""A two-dimensional map of an index: layout, clusters with names, outliers and near-duplicates."""
