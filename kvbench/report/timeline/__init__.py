"""A sample over time, as a file for the Perfetto UI: requests, engine steps, blocks and tiers."""
