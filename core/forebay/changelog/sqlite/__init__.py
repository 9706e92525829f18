"""The embedded changelog: SQLite databases in a directory of one machine."""
