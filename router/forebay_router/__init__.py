"""The router tier: knows who holds what, and asks the replica that best meets a read's tolerance."""
