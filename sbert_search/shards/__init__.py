"""Sharded indexes: one folder of ordinary indexes that are searched and changed as one."""
