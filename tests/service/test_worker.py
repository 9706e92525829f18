"""A whole worker in this process: what it reports of itself, to load balancers and to its group."""
