"""What a measurement is worth before it is taken."""
