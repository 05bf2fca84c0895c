"""Keeps numbers: Arrow schemas, the run folder, its parts and its manifest. Torch-free."""
