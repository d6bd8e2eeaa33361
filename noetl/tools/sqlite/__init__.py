"""Tool kind `sqlite`."""
