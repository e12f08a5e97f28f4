"""The operations of the server, in groups."""
