"""The processor: its name, its cores and threads, and which way of computing is fastest on it."""
