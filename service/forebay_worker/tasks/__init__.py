"""Tasks: replicas of store partitions, kept up to date from the changelog."""
