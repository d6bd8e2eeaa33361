"""Backups: a consistent copy of an installation in one file, made while it is running."""
