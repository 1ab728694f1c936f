"""Transports. Each has a trainer half (a ``Transport``) and, where vLLM has none of that name, an engine half."""
