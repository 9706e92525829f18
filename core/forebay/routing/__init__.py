"""Which replicas a router asks, in which order and when. No I/O is done here."""
