"""Stores of encrypted credentials."""
