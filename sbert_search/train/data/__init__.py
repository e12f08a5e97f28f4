"""Training data: pairs, triplets, labelled texts, mined negatives, targets of a teacher."""
