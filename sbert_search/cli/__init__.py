"""The command line: each command parses, calls the API once and prints."""
