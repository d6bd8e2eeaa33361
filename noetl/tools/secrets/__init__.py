"""Tool kind `secrets`."""
