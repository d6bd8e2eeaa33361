"""Data formats and conversions: rows, Arrow tables, files, payload streams."""
