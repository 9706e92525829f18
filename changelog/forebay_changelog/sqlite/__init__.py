"""The embedded changelog: SQLite databases in a directory on one machine."""
