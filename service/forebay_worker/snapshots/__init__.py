"""Copies of stores that workers take from each other, in place of a replay of the log."""
