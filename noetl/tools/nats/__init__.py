"""Tool kind `nats`."""
