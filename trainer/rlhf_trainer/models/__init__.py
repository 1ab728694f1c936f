"""Language and value models as the workers use them: loading, packing, log-probs."""
