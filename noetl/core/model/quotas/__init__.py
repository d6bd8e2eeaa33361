"""Quotas: how often steps and tasks start."""
