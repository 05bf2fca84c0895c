"""What `auto` stands for in the engine's settings, by the kind of device (`rocm`: under the virtual clock only).
Torch-free, so that a plan can say it."""

ATTENTION = {"cpu": "numba", "cuda": "torch", "rocm": "torch"}
"""Attention backend."""

WEIGHT_DTYPE = {"cpu": "fp32", "cuda": "bf16", "rocm": "bf16"}
"""Dtype of weights and activations."""
