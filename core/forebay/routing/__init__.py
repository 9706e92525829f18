"""Which replicas to ask, in which order and when: shared by routers and clients."""
