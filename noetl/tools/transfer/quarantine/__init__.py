"""Rows that cannot be read, converted or written, and where they are recorded."""
