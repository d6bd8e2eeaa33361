"""Tool kind `shell`."""
