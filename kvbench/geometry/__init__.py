"""The shape of a model's KV cache and the bytes that follow from it."""
