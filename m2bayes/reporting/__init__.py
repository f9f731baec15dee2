"""A decision as one page."""
