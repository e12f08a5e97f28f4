"""The training loop that all models share: steps, schedules, checkpoints, logs, resuming."""
