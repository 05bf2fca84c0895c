"""Requests: lengths, arrivals, sharing, token ids, and the importers of recorded traces. Torch-free."""
