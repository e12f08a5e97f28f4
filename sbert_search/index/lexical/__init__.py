"""Lexical search by BM25: from words to terms, postings and scores."""
