"""Tool kind `wait`."""
