"""Schedules and webhooks: one file per back end."""
