"""An index on disk, in one folder or in shards: documents and vectors, built, searched, kept up."""
