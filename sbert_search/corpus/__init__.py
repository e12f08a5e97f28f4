"""Read files into documents, queries, relevance judgements, pairs and triplets of texts."""
