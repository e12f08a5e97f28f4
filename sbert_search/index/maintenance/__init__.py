"""What keeps an index healthy: merging, compaction, checks, drift, backups, and its description."""
