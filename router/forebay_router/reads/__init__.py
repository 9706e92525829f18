"""Reads through a router: of one key, several keys, many partitions, and the changes of a key."""
