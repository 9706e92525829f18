"""What a router knows of the workers: which are alive, what they hold, how far behind, whom to ask first."""
