"""Read text: documents from files and databases, labelled data, and the tokens of both.

The sources are files, databases and rows in memory. The modules `shards` and `shard_writer` store
documents as files of token ids.
"""
