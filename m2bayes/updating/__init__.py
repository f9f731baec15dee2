"""A stored posterior conditioned on new measurements."""
