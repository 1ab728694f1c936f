"""New weights from the trainer to the engines, over vLLM's weight-transfer API."""
