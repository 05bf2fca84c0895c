"""What a CI system reads: a verdict in Markdown, as annotations, JUnit XML, JSON and Parquet; metrics for charts."""
