"""The judge: has a candidate become slower than its baseline? Knows numbers and nothing of how they were taken."""
