"""Readers of recorded traces; `read.read_trace` is the door."""
