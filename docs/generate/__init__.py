"""Generators of the reference pages: `python -m docs.generate` writes them, tests compare them with the code."""
