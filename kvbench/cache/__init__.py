"""Bookkeeping of KV blocks: who owns which, what is cached, what moves. Numbers only, no tensors, no torch."""
