"""Tool kind `object`."""
