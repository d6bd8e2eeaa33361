"""Targets that are files or objects: their writers, columns and partitions."""
