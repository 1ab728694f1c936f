"""Data sets on disk or on the hub -> prompts for the engine, in an order that can be resumed."""
