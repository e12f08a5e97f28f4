"""Lexical search by BM25: split texts into words, index their terms, and score documents."""
