"""The training loop of all models: steps, schedules, checkpoints, logs, resuming."""
