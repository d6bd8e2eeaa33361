"""Checks of SQL text: templates inside of it, and parameters without a value."""
