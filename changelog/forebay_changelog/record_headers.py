"""The Kafka record headers that forebay writes and reads.

Imports nothing: the Spark sink ships this module to executors that may lack forebay.
"""

HEARTBEAT_HEADER = "forebay-heartbeat"
"""Marks a heartbeat."""
SUPERSEDED_HEADER = "forebay-superseded"
"""On a heartbeat: the queries from which its own took over the writer's name, a JSON array, the newest first."""
COMPLETED_HEADER = "forebay-completed"
"""On the tombstone of a writer's heartbeats: it was retired since it has written all that it had to."""
DELETED_HEADER = "forebay-deleted"
"""Marks a deletion with an order. Its value is empty instead of null: Kafka drops nulls after a while, and what it
prevails over may be there longer."""
VALID_FROM_HEADER = "forebay-valid-from-ms"
"""A version's valid-from, 8 bytes big-endian: Spark's Kafka sink sets no timestamps."""
