"""Arrays and runs to numbers: what a ranking or a similarity is worth."""
