"""Rewrite playbook text in place: formatting and migration between dialects."""
