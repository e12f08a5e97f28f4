"""The commands of ``sbert-search index``."""
