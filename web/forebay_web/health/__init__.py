"""What is wrong, and the remedy: the condition of replicas, surveys of all stores, and findings."""
