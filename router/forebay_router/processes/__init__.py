"""A router of several processes: their parent, how they find each other, and what they report together."""
