"""Tool kind `http`."""
