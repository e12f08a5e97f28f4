"""Training of cross-encoders: models that read two texts together and score the pair."""
