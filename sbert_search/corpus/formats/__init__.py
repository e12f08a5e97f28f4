"""One reader per file format; each turns bytes into rows, and unreadable rows into rejects."""
