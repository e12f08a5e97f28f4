"""Getting documents into an index: builds, updates, duplicate ids, model checks, export."""
