"""The reference paged inference engine."""
