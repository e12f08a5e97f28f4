"""Read data for training and evaluation.

These are queries with relevance judgements, runs and candidates to rerank; pairs, triplets and
groups of texts; texts with labels, tokens with tags, and questions with answers.
"""
