"""Learn WordPiece and BPE vocabularies from the words of a corpus."""
