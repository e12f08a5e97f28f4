"""Read text: documents from files and databases, labelled data, and the tokens of both."""
