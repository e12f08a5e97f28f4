"""The models of a server: each has a queue, in which the texts of all requests share batches."""
