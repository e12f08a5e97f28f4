"""Read files into records: documents, queries, relevance judgements, pairs and triplets."""
