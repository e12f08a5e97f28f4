"""The command line: each command parses arguments, calls the API and prints the result."""
