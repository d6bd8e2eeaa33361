"""Tool kind `noop`."""
