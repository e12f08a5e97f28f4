"""One reader per file format: bytes to rows, bad rows as rejects."""
