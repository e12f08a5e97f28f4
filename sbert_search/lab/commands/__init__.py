"""The commands of the group `analyze`."""
