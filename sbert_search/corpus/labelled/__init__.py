"""Read data with labels: judged queries, candidates, scored pairs, triplets and runs."""
