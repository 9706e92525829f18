"""The embedded worker group: leases in a SQLite database, for the processes of one machine."""
