"""Servers under load: what a replica promises, how many are needed, and a simulation beside it."""
