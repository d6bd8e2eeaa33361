"""Tool kind `python`."""
