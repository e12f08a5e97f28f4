"""Files become records: documents, queries, judgements and scored pairs."""
