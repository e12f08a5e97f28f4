"""Find, describe and hash model folders, and load them with a check of every tensor."""
