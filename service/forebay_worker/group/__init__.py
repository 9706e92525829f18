"""The worker group: which workers are alive, which one leads, and which tasks each holds."""
