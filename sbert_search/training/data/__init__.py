"""Labelled text as training rows: pairs, triplets, mined negatives, targets of a teacher."""
