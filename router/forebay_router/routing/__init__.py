"""Which replicas to ask, in which order and when. No I/O is done here."""
