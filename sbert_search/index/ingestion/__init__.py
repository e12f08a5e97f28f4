"""Documents into an index: builds, updates, duplicates, the check of the model, export."""
