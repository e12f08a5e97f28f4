"""Keeping an index fast and sound: merges, compaction, checks, backups, a summary."""
