"""Loss functions of embeddings or logits; callers run the model and gather across ranks."""
