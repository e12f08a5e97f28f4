"""BM25: from words to terms, from terms to postings, from postings to scores."""
