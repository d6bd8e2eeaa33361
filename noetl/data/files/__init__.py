"""Formats of files: CSV, JSON, Parquet, Arrow, and their compression."""
