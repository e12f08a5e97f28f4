"""One reader for each file format: bytes to rows, with bad rows named."""
