"""Settings from a length distribution: the distribution, the exact arithmetic, the flags of other servers."""
