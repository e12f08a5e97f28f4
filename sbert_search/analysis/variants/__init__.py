"""Compare model families that were pre-trained on one corpus with one equal budget."""
