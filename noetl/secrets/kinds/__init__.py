"""Keychain kinds, one module each."""
