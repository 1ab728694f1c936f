"""Training workers: batches, losses, DeepSpeed, saved state."""
