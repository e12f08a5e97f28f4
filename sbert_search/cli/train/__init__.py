"""The commands that train: ``sbert-search pretrain`` and ``sbert-search train``."""
