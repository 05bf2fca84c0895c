"""Attention over the paged KV store: one backend per way of reading it, behind one interface."""
