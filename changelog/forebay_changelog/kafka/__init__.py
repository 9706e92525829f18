"""The Kafka changelog: topics of a Kafka cluster, read read-committed."""
