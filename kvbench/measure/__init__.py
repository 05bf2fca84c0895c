"""Takes numbers: timers, stopping rules, the environment, a case in its own process."""
