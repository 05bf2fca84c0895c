"""Judges numbers and never takes them. Torch-free."""
