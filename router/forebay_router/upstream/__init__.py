"""The way to a worker: connections, the requests in flight on them, credentials, and what answers report."""
