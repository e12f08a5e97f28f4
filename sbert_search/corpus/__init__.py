"""Read documents, vectors and labelled data, such as pairs of texts and relevance judgements.

The sources are files, databases and rows in memory. The modules `shards` and `shard_writer` store
documents as files of token ids.
"""
