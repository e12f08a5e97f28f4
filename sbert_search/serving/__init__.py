"""The HTTP server: embeddings, reranking and search for clients of other services and of this one.

The extra ``serve`` brings its packages. Only the command ``serve`` imports this folder.
"""
