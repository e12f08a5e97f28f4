"""Sharded indexes: folders of ordinary indexes (shards) that act as one index together."""
