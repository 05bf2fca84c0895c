"""Find a good kernel configuration with few trials."""
