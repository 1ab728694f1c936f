"""The RLHF engine: Ray actors for DeepSpeed trainers and vLLM engines, driven by one controller."""
