"""The worker group: who is alive, who leads, and who holds which task."""
