"""Reads of the replicas that this worker holds."""
