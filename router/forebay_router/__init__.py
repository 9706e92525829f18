"""The router tier: knows which worker holds what, and asks the replica that best meets a read's tolerance."""
