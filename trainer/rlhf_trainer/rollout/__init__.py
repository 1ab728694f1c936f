"""Sampling responses with vLLM: token in, token out."""
