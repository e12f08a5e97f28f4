"""What a query says about single words: required, excluded, quoted and misspelt ones."""
