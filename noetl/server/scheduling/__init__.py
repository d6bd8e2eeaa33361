"""Schedules and webhooks: what starts executions without a request from a user."""
