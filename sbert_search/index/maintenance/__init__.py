"""Maintaining an index: merges, compaction, checks, drift after updates, backups, a summary."""
