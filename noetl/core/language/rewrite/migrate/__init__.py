"""Migrations between dialects, as edits of the author's text."""
