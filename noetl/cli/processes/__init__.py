"""Commands that start and stop servers and workers."""
