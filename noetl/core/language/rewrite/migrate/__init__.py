"""Rewrites between surfaces, as splices into the author's text."""
