"""One module for each engine: its schema, its client and the code that searches it."""
