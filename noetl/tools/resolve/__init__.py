"""Tool kind `resolve`."""
