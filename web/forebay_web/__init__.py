"""HTTP as both tiers serve it: routes, limits, the fast path, streams, tickets, TLS, processes, health."""
