"""The commands of ``sbert-search eval``."""
