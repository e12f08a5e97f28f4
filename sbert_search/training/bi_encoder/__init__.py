"""Training of sentence encoders on labels, scores, triplets and in-batch negatives."""
