"""What a job keeps on its volume, so that any later start continues it exactly."""
