"""What a running job says about itself: timings, metrics, progress, logs."""
