"""Training of cross-encoders, which read two texts together and score the pair."""
