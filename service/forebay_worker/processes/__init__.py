"""A worker of several processes: what each gets of its settings, their parent, and what they report together."""
