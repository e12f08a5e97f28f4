"""The HTTP server for embeddings, reranking and search, and its tools for language models.

The extra ``serve`` installs the packages of the server, the extra ``mcp`` those of the tools. Only
the commands ``serve`` and ``mcp`` import this folder.
"""
