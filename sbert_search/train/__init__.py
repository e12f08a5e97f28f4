"""Training: one loop for all models, and the objectives, data and recipes of each kind."""
