"""Tool kind `postgres`."""
