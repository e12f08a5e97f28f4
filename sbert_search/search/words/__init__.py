"""The words of a query: which are required, excluded, quoted or misspelt."""
