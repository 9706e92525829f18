"""Stores as files: copies that workers take from each other, and snapshots in a directory or object store."""
