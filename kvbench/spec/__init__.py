"""What was asked: suites, their fields, and the cases they expand into."""
