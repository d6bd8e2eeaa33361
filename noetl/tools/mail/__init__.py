"""Tool kind `mail`."""
