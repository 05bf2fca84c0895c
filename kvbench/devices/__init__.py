"""Facts of known devices, and the one at hand."""
