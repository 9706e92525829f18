"""The Kafka changelog: topics of a Kafka cluster, read as read-committed."""
