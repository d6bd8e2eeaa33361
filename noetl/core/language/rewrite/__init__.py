"""Rewriting playbook text in place: formatting and migration between dialects."""
