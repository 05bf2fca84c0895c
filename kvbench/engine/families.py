"""The model families that the transformer runs. Torch-free, so that a plan can refuse the others at once."""

FAMILIES = ("llama", "qwen2", "qwen3")
"""Hugging Face `model_type`s."""
