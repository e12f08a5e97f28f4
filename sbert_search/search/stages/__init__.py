"""The stages of a search: each finds a ranking of documents or changes one."""
