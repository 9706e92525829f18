"""The worker group on Kafka: its consumer-group protocol carries the two messages."""
