"""Stores of payloads too large for the log."""
