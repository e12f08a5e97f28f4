"""Run the command line as ``python -m sbert_search``."""

from sbert_search.cli.main import main

main()
