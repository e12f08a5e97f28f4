"""Compare model families that were pre-trained on the same corpus with the same budget."""
