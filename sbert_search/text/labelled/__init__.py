"""Read data for training and evaluation: queries with judgements, runs, pairs, triplets, labels."""
