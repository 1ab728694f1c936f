"""What the trainer computes: pure functions over padded batches ``[N, T]``, without I/O, ranks or models."""
