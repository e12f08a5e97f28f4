"""Training of task heads: classifiers of texts, taggers of tokens, models that answer questions."""
