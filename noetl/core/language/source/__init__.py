"""YAML text to a tree of positioned nodes."""
